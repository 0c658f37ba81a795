"""How fast sliders answer: the book's explorers beside `interact` and matplotlib, in one run.

What is measured for the explorers says `tests/browser/speed.py`. `interact` draws the same picture, mark by mark
(`same_marks`), in a local JupyterLab, in the same Chromium: from just before the key event on the slider's handle to
the first task after the frame that shows the new, decoded picture in the page. Each is the p50 and the p95 of a round,
and of these the median over the rounds.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path

import nbformat

from scalebook.book.stills import SPEC
from tests.bench import same_marks
from tests.bench.rows import Row
from tests.browser.site_pages import MISSING, SITE, explorers, served
from tests.browser.speed import FRAME, Timing, measure, p95, unlimited_chromium
from tests.chromium import watched_page
from tests.live.lab import jupyter_lab, open_notebook, run_all

TIMES_FASTER = 20  # the target: at least, beside `interact`
# JupyterLab takes cells that are out of sight out of the page, unless it is told not to.
ALL_CELLS = """() => {
  const notebook = jupyterapp.shell.currentWidget.content;
  notebook.notebookConfig = { ...notebook.notebookConfig, windowingMode: "none" };
}"""
PRESS = """async ([index, count]) => {
  const handle = document.querySelectorAll(".jp-OutputArea .noUi-handle")[index];
  const output = handle.closest(".widget-interact, .jupyter-widgets").parentElement.closest(".jp-OutputArea");
  const picture = () => output.querySelector("img");
  const painted = () => new Promise((done) => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => { channel.port1.close(); done(performance.now()); };
    channel.port2.postMessage(null);
  }));
  const times = [];
  for (let i = 0; i < count; i += 1) {
    const before = picture().src;
    const key = Math.floor(i / 12) % 2 ? "ArrowLeft" : "ArrowRight";
    const start = performance.now();
    const changed = new Promise((done, fail) => {
      const late = setTimeout(() => fail(new Error("no new picture within 10 s")), 10000);
      const observer = new MutationObserver(() => {
        if (!picture() || picture().src === before) return;
        observer.disconnect();
        clearTimeout(late);
        done();
      });
      observer.observe(output, { childList: true, subtree: true, attributes: true });
    });
    handle.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    await changed;
    await picture().decode();
    times.push((await painted()) - start);
    await new Promise((done) => setTimeout(done, 50));
  }
  return times;
}"""


def explorers_timings(browser, samples, rounds):
    """Return the `Timing` of every explorer of the built site, by name."""
    timings = {}
    with served(SITE) as address:
        for name in sorted({figure.page for figure in explorers()}):
            page, _ = watched_page(browser, viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
            page.goto(f"{address}/{name}")
            for figure in explorers():
                if figure.page == name:
                    timings[figure.name] = measure(page, figure, samples, rounds)
            page.context.close()
    return timings


def interact_timings(browser, samples, rounds):
    """Return the `Timing` of `interact` and matplotlib in a local JupyterLab, for the picture of each explorer."""
    pictures = {figure.name: same_marks.panels(chart) for figure, chart in charts()}
    cells = [same_marks.CODE, *map(same_marks.cell, pictures)]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    timings = {}
    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(notebook, Path(folder) / "bench.ipynb")
        (Path(folder) / "pictures.json").write_text(json.dumps(pictures), encoding="utf-8")
        with jupyter_lab(folder) as lab:
            page, _ = watched_page(browser, viewport={"width": 1280, "height": 1400})
            open_notebook(page, lab, "bench.ipynb")
            page.evaluate(ALL_CELLS)
            run_all(page)
            for index, name in enumerate(pictures):
                picture = page.locator(".jp-OutputArea img").nth(index)
                picture.wait_for(timeout=20_000)
                picture.scroll_into_view_if_needed()
                page.evaluate(PRESS, [index, 12])
                run = [page.evaluate(PRESS, [index, samples]) for _ in range(rounds)]
                timings[name] = Timing(statistics.median(map(statistics.median, run)),
                                       statistics.median(map(p95, run)), float("nan"), samples * rounds)
            page.context.close()
    return timings


def charts():
    """Yield each explorer of the built site with its chart in Vega."""
    for figure in explorers():
        html = (SITE / figure.page).read_text(encoding="utf-8")
        body = SPEC.search(html, html.index(f'id="{figure.identity}"'))
        yield figure, json.loads(body[1])


def table(drawn, compared):
    """Write the timings as lines of one table."""
    yield f"{'explorer':16} {'p50':>7} {'p95':>7} {'computing':>10} {'samples':>8}   beside interact: p50, times faster"
    for name, one in drawn.items():
        beside = f"{compared[name].p50:7.1f} {compared[name].p50 / one.p50:5.1f}" if compared else ""
        late = "  OVER ONE FRAME" if one.p95 > FRAME else ""
        yield f"{name:16} {one.p50:7.1f} {one.p95:7.1f} {one.computing:10.1f} {one.samples:8}   {beside}{late}"
    yield f"Milliseconds from the change to the painted frame; one frame at 60 Hz is {FRAME:.1f} ms."


def run(options):
    """Print the table; return the rows."""
    if not (SITE / "index.html").exists():
        sys.exit(MISSING)
    rounds = options.rounds or 3
    with unlimited_chromium() as browser:
        drawn = explorers_timings(browser, options.samples, rounds)
        few = max(options.samples // 4, 20)
        compared = {} if options.no_interact else interact_timings(browser, few, rounds)
    print("\n".join(table(drawn, compared)))
    found = [Row("explorers", f"{name}: slider to picture, p95", one.p95, "one frame at 60 Hz", FRAME, "ms", 1)
             for name, one in drawn.items()]
    for name, one in drawn.items() if compared else ():
        found.append(Row("explorers", f"{name}: slider to picture, p50", one.p50, "interact and matplotlib, same marks",
                         compared[name].p50, "ms", 1 / TIMES_FASTER))
    return found
