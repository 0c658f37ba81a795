"""The stock Jupyter Book that the bench measures beside: what it is made of, and what stands in for other hosts.

Neither npm nor a browser nor Jupyter Book is needed here.
"""

import gzip
from types import SimpleNamespace

import nbformat
import pytest

from scalebook.book.notebooks import chapters
from tests.bench import contenders, stock
from tests.browser.site_pages import Figure, Input, explorers_of

HTML = '<figure class="explorer" id="explorer-bubble"><figcaption>It moves.</figcaption></figure>'
INPUTS = (Input("a", "P", "range", (2, 3, 4)), Input("b", "schedule_index", "select", (0, 1)),
          Input("c", "log", "checkbox", (False, True)))


def code_cell(source, **data):
    output = nbformat.v4.new_output("display_data", data={key.replace("_", "/"): text for key, text in data.items()})
    return nbformat.v4.new_code_cell(source, outputs=[output] if data else [])


def test_an_explorer_becomes_interact_with_as_many_controls():
    notebook = nbformat.v4.new_notebook(cells=[code_cell("explore(...)", text_html=HTML)])
    made = stock.stock_notebook(notebook, [Figure("page", "explorer-bubble", INPUTS)])
    compile(made.cells[0].source, "cell", "exec")
    assert made.cells[0].source.startswith(stock.CHART)
    assert made.cells[0].source.endswith("interact(chart, x0=IntSlider(value=0, min=0, max=2), "
                                         "x1=Dropdown(options=range(2)), x2=Checkbox());")
    assert nbformat.validate(made) is None


def test_listings_and_what_they_print_are_shown_and_do_not_run():
    cell = nbformat.v4.new_code_cell("print(1 + 1)", outputs=[nbformat.v4.new_output("stream", text="2\n")])
    (made,) = stock.stock_notebook(nbformat.v4.new_notebook(cells=[cell]), []).cells
    assert made.cell_type == "markdown"
    assert made.source == "~~~python\nprint(1 + 1)\n~~~\n\n~~~text\n2\n\n~~~\n"


def test_predictions_are_left_out_since_stock_tools_have_none():
    cell = code_cell("predict(...)", text_html='<div class="prediction">?</div>')
    assert not stock.stock_notebook(nbformat.v4.new_notebook(cells=[cell]), []).cells


@pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
def test_a_chapters_stock_page_keeps_its_text_and_has_a_control_for_each_of_its_own(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    html = "".join(output.data.get("text/html", "") for cell in notebook.cells for output in cell.get("outputs", [])
                   if "data" in output)
    (tmp_path / "all.html").write_text(html, encoding="utf-8")
    figures = explorers_of(tmp_path / "all.html", path.stem)
    made = stock.stock_notebook(notebook, figures)
    charts = [cell.source for cell in made.cells if cell.cell_type == "code"]
    text = "\n".join(cell.source for cell in made.cells if cell.cell_type == "markdown")
    own = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert len(charts) == len(figures) > 0
    assert sum(source.count("=IntSlider(") + source.count("=Dropdown(") + source.count("=Checkbox(")
               for source in charts) == sum(len(figure.inputs) for figure in figures)
    assert "{exercise}" not in text
    assert "{solution" not in text
    assert text.count("$") >= own.count("$")
    assert len(text) > 0.95 * len(own)


def test_nested_and_ordinary_fences_stay_whole():
    text = "````{exercise} Two\n:label: x\n:class: y\n\n```python\nx\n```\n````\n\n```python\n{a}\n```\n"
    assert stock.plain(text) == "**Two**\n\n```python\nx\n```\n\n\n```python\n{a}\n```\n"
    assert stock.plain("```{solution-start} x\n:label: y\n```\n\nIt is 3.") == "\n\nIt is 3.\n"


PAGE = """<link href="../_static/a.css" rel="stylesheet" />
<script defer="defer" src="https://one.example/npm/mathjax@3/es5/all.js"></script>
<script src="https://two.example/libs/require.js/2.3.4/require.min.js" integrity="sha256-x="></script>
<script async src="https://one.example/npm/@a/b@1.0.6/dist/c.js"></script>
<script src="https://one.example/npm/absent@1.0.0/d.js"></script>
<script src="https://three.example/counter.js"></script>
<a href="https://arxiv.org/abs/1">a paper</a>
"""


@pytest.fixture
def packages(tmp_path):
    for name in ("mathjax@3.2.2/es5/all.js", f"requirejs@2.3.4/{contenders.REQUIRE}", "@a/b@1.0.6/dist/c.js"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("script", encoding="utf-8")
    return tmp_path


def test_what_lies_on_other_hosts_comes_from_this_one_and_the_rest_is_named(packages):
    page, missing = stock.nearby(PAGE, packages)
    assert missing == ["https://one.example/npm/absent@1.0.0/d.js", "https://three.example/counter.js"]
    assert page == """<link href="../_static/a.css" rel="stylesheet" />
<script defer="defer" src="/_others/mathjax@3.2.2/es5/all.js"></script>
<script src="/_others/requirejs@2.3.4/require.min.js"></script>
<script async src="/_others/@a/b@1.0.6/dist/c.js"></script>


<a href="https://arxiv.org/abs/1">a paper</a>
"""


def test_without_the_packages_the_bench_says_what_it_leaves_out(monkeypatch, tmp_path, capsys):
    (tmp_path / "index.html").touch()
    monkeypatch.setattr(stock, "SITE", tmp_path)
    monkeypatch.setattr(stock.contenders, "web_missing", lambda: ["mathjax@3.2.2"])
    assert stock.run(SimpleNamespace(rounds=1)) == []
    assert "for want of mathjax@3.2.2; get them with: python -m tests.bench.contenders" in capsys.readouterr().out


def test_what_is_pinned_is_missing_until_its_folder_is_there(tmp_path):
    pins = contenders.web_pins()
    assert {pin.rpartition("@")[0] for pin in pins} == {"requirejs", "@jupyter-widgets/html-manager", "mathjax",
                                                        "pyodide"}
    assert contenders.web_missing(tmp_path) == pins
    (tmp_path / pins[0]).mkdir(parents=True)
    assert contenders.web_missing(tmp_path) == pins[1:]


def test_a_fetch_that_fails_leaves_what_was_there(tmp_path):
    there = tmp_path / "web"
    there.mkdir()
    (there / "old").touch()
    with pytest.raises(FileExistsError), contenders.replacing(there) as new:
        new.mkdir()  # it is there, so this fails
    assert [path.name for path in tmp_path.rglob("*")] == ["web", "old"]
    with contenders.replacing(there) as new:
        (new / "whole").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["web", "whole"]


def test_each_file_is_weighed_as_gzip_sends_it(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(b"x" * 10_000)
    one = len(gzip.compress(b"x" * 10_000, mtime=0))
    assert stock.gzipped([tmp_path / "a", tmp_path / "b"]) == 2 * one
