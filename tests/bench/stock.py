"""What a chapter's page costs beside the same page in a stock Jupyter Book, and beside Python in the browser.

The stock book is built here: the pinned Jupyter Book with no setting but a title and an author. Its pages have the
chapters' text, mathematics, listings and figures. In place of each explorer stands `interact` with as many controls and
a picture by matplotlib; Jupyter Book runs it and stores the widgets' state. What such a page loads from other hosts it
gets from this machine, as `python -m tests.bench.contenders` fetched it, and so faster than anyone gets it from there.

Weight and readiness are got as `tests/browser/opening.py` says, for both; a stock page is ready when its first slider
stands in it. Nobody moves anything with that slider, since no kernel runs.

Python in the browser is Pyodide, by size: what it loads before any package. numpy and matplotlib, which a page with a
picture needs too, are not counted: the npm registry does not hold them.
"""

import gzip
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat

from scalebook.book.build import JUPYTER_BOOK
from tests.bench import contenders
from tests.bench.rows import Row
from tests.browser.opening import read_through, readiness, standing
from tests.browser.site_pages import MISSING, ROOT, SITE, explorers, served
from tests.chromium import chromium

VIEWPORT = {"width": 1280, "height": 900}
OTHERS = "_others"  # the folder of the stock site with what lies on other hosts
CONFIG = "title: How large models are trained and shrunk\nauthor: The scalebook authors\n"
DIRECTIVE = re.compile(r"^(`{3,}|:{3,})\{([\w-]+)\} *(.*)\n((?::[\w-]+:.*\n)*)((?:.*\n)*?)\1 *$", re.MULTILINE)
ROLE = re.compile(r"\{[\w:-]+\}`([^`]*)`")
LOADING = re.compile(r'<(script|link)\b[^>]*?\b(?:src|href)="(https?://[^"]+)"[^>]*>(?:</script>)?')
PACKAGE = re.compile(r"https?://[^/]+/(?:npm/)?((?:@[\w-]+/)?[\w.-]+@[\d.]+)/(.+)")
SHORT_REQUIRE = re.compile(r"https?://.+/require\.js/([\d.]+)/require\.min\.js")
EXPLORER = re.compile(r'<figure class="explorer" id="([^"]+)"')
CHART = """import matplotlib.pyplot as plt
from ipywidgets import Checkbox, Dropdown, IntSlider, interact


def chart(**values):
    M = range(1, 129)
    figure, axes = plt.subplots(figsize=(6.4, 3))
    for P in (8, 16):
        axes.plot(M, [(P - 1) / (m + P - 1) for m in M], label=f"{P} stages")
    axes.set(xlabel="micro-batches M", ylabel="bubble", ylim=(0, 1))
    axes.legend()
    plt.show()
"""
SLIDER = ".widget-interact .noUi-handle"
READ = """async () => {{
  const widgets = document.querySelectorAll(".widget-interact");
  if (widgets.length < {count} || ![...widgets].every((one) => one.querySelector("img"))) return false;
  await MathJax.startup.promise;
  await document.fonts.ready;
  return true;
}}"""
PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")


def plain(text):
    """Markdown without the directives and roles that a stock book does not know; what they hold stays.

    >>> plain("A {cite}`b`.\\n\\n```{exercise} One\\n:label: e\\n\\nHow many?\\n```\\n")
    'A b.\\n\\n**One**\\n\\nHow many?\\n\\n'
    """
    def held(match):
        title = "" if match[2].startswith("solution-") else f"**{match[3]}**\n"
        return f"{title}{match[5]}"

    return ROLE.sub(r"\1", DIRECTIVE.sub(held, text + "\n" * (not text.endswith("\n"))))


def control(one):
    """A `site_pages.Input` as the code of the ipywidget for it: as many positions, the first of them chosen."""
    last = len(one.positions) - 1
    return {"select": f"Dropdown(options=range({last + 1}))", "checkbox": "Checkbox()"}.get(
        one.kind, f"IntSlider(value=0, min=0, max={last})")


def stock_notebook(notebook, figures):
    """A chapter as one would write it with stock tools; `figures` are its explorers (`site_pages.Figure`).

    Listings and what they printed become Markdown, so that only the charts run.
    """
    by_identity = {figure.identity: figure for figure in figures}
    cells, first = [], True
    for cell in notebook.cells:
        html = "".join(output.data.get("text/html", "") for output in cell.get("outputs", []) if "data" in output)
        identity = EXPLORER.search(html)
        if cell.cell_type == "markdown":
            cells.append(nbformat.v4.new_markdown_cell(plain(cell.source)))
        elif identity:
            controls = "".join(f", x{i}={control(one)}" for i, one in enumerate(by_identity[identity[1]].inputs))
            cells.append(nbformat.v4.new_code_cell((CHART if first else "") + f"\ninteract(chart{controls});"))
            first = False
        elif not html:  # the rest of the HTML are predictions, which stock tools do not have
            printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
            cells.append(nbformat.v4.new_markdown_cell(f"~~~python\n{cell.source}\n~~~\n"
                                                       + f"\n~~~text\n{printed}\n~~~\n" * bool(printed)))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def nearby(html, folder):
    """A page that loads from `OTHERS` what it loads from other hosts, and the addresses that are not in `folder`.

    `folder` has packages below "name@version". What it lacks is taken out of the page. Checksums are taken out too.
    """
    missing = set()

    def place(match):
        require, package = SHORT_REQUIRE.fullmatch(match[2]), PACKAGE.fullmatch(match[2])
        if require:
            path = f"requirejs@{require[1]}/{contenders.REQUIRE}"
        elif package:  # a version may be given in part: 3 is the 3.2.2 that lies there
            found = sorted(folder.glob(f"{package[1]}*"))
            path = f"{found[-1].relative_to(folder)}/{package[2]}" if found else ""
        else:
            path = ""
        if not path or not (folder / path).is_file():
            missing.add(match[2])
            return ""
        return re.sub(r' integrity="[^"]*"', "", match[0]).replace(match[2], f"/{OTHERS}/{path}")

    return LOADING.sub(place, html), sorted(missing)


def build(folder, chapters, figures, packages):
    """Build the stock book of some chapters' pages in `folder`: its site, and the addresses it must do without."""
    folder = Path(folder)
    (folder / "_config.yml").write_text(CONFIG, encoding="utf-8")
    (folder / "index.md").write_text("# Contents\n\nThe chapters.\n", encoding="utf-8")
    names = [Path(chapter).stem for chapter in chapters]
    listed = "".join(f"  - file: chapters/{name}\n" for name in names)
    (folder / "_toc.yml").write_text(f"format: jb-book\nroot: index\nchapters:\n{listed}", encoding="utf-8")
    shutil.copytree(ROOT / "figures", folder / "figures", ignore=shutil.ignore_patterns("*.py"))
    (folder / "chapters").mkdir()
    for chapter, name in zip(chapters, names, strict=True):
        notebook = nbformat.read(ROOT / "chapters" / f"{name}.ipynb", as_version=4)
        own = [figure for figure in figures if figure.page == chapter]
        nbformat.write(stock_notebook(notebook, own), folder / "chapters" / f"{name}.ipynb")
    result = subprocess.run([sys.executable, "-c", JUPYTER_BOOK, "build", "."], cwd=folder, check=False,
                            capture_output=True, text=True)
    site, missing = folder / "_build" / "html", set()
    if result.returncode:
        raise RuntimeError(f"the stock book was not built:\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}")
    for chapter in chapters:
        page, without = nearby((site / chapter).read_text(encoding="utf-8"), packages)
        (site / chapter).write_text(page, encoding="utf-8")
        missing.update(without)
    (site / OTHERS).symlink_to(packages)
    return site, sorted(missing)


def gzipped(paths):
    """How many bytes gzip makes of files, each for itself."""
    return sum(len(gzip.compress(path.read_bytes(), mtime=0)) for path in paths)


def heaviest_and_median(weights):
    """Of {page: weight}, the heaviest page and the one in the middle (of an even number, the heavier of the two).

    >>> heaviest_and_median({"a": 3, "b": 9, "c": 4, "d": 5})
    {'heaviest': 'b', 'median': 'd'}
    """
    ordered = sorted(weights, key=weights.get)
    return {"heaviest": ordered[-1], "median": ordered[len(ordered) // 2]}


def alone(watch):
    """Whether a stock page asked no other host; it may fail in what it does (it does: it looks for fonts in vain)."""
    return not watch.foreign


def turns(browser, site, stock, figure, rounds):
    """Medians of the milliseconds until ours is ready and until the stock page is, taken in turns."""
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(readiness(browser, site, figure))
        theirs.append(standing(browser, f"{stock}/{figure.page}", SLIDER))
    return statistics.median(ours), statistics.median(theirs)


def measure(browser, site, figures, rounds, packages):
    """The rows beside the stock book and Pyodide; prints what the stock book had to do without."""
    first = {figure.page: figure for figure in reversed(figures)}
    weights = {name: read_through(browser, site, name, VIEWPORT).total for name in first
               if (ROOT / "chapters" / f"{Path(name).stem}.ipynb").exists()}
    chosen = heaviest_and_median(weights)
    pyodide = next(packages.glob("pyodide@*"))
    core, found = gzipped(pyodide / name for name in PYODIDE), []
    with tempfile.TemporaryDirectory(prefix="scalebook-") as folder:
        stock, missing = build(folder, sorted(set(chosen.values())), figures, packages)
        with served(stock) as address:
            for which, name in chosen.items():
                count = sum(figure.page == name for figure in figures)
                beside = read_through(browser, address, name, VIEWPORT, READ.format(count=count), alone).total
                ours, theirs = turns(browser, site, address, first[name], rounds)
                what, weight = f"{Path(name).stem}, the {which}", weights[name] / 1000
                found += [
                    Row("stock", f"{what}: weight", weight, "a stock Jupyter Book", beside / 1000, "kB", 1),
                    Row("stock", f"{what}: ready", ours, "a stock Jupyter Book", theirs, "ms", 1),
                    Row("stock", f"{what}: weight", weight, f"{pyodide.name} without packages", core / 1000, "kB", 1)]
    print(f"Left out of the stock book's weight: {', '.join(missing) or 'nothing'}")
    return found


def run(options):
    """Print what is left out; return the rows."""
    if not (SITE / "index.html").exists():
        sys.exit(MISSING)
    lacking = contenders.web_missing()
    if lacking:
        print(f"Left out: a stock Jupyter Book and Python in the browser, for want of {', '.join(lacking)}; "
              f"get them with: {contenders.COMMAND}")
        return []
    with served(SITE) as site, chromium() as browser:
        return measure(browser, site, explorers(), options.rounds or 3, contenders.WEB)
