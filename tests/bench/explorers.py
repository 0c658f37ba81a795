"""How fast sliders answer: the book's explorers beside `interact` and matplotlib, in one run.

What is measured for the explorers says `tests/browser/speed.py`. For `interact` in a local JupyterLab, in the same
Chromium: from just before the key event on the slider's handle to the first task after the frame that shows the
new, decoded picture in the page. Each is the p50 and the p95 of a round, and of these the median over the rounds.
"""

import statistics
import sys
import tempfile
from pathlib import Path

import nbformat

from tests.bench.rows import Row
from tests.browser.site_pages import MISSING, SITE, explorers, served
from tests.browser.speed import FRAME, Timing, measure, p95, unlimited_chromium
from tests.chromium import watched_page
from tests.live.lab import jupyter_lab, open_notebook, run_all

TIMES_FASTER = 20  # the target: at least, beside `interact`
BARS = ("gantt", "life")  # explorers of sixty bars and more; the others are compared with lines, which are quicker
SETUP = """
%matplotlib inline
import matplotlib.pyplot as plt
from ipywidgets import interact, IntSlider
from scalebook.formulas import pipeline as formulas
from scalebook.pipeline import simulate
"""
# The same kinds of chart as the book's: two measured curves, and the bars of a schedule.
CHARTS = {
    "lines": """
M = list(range(1, 129))
@interact(P=IntSlider(value=8, min=2, max=64))
def lines(P):
    figure, axes = plt.subplots(figsize=(6.4, 3))
    axes.plot(M, formulas.bubble_overhead(P=P, M=M), label="overhead over ideal time")
    axes.plot(M, formulas.bubble_share(P=P, M=M), label="share of total time")
    axes.set(xlabel="micro-batches M", ylabel="bubble", ylim=(0, 1))
    axes.legend()
    plt.show()
""",
    "bars": """
@interact(M=IntSlider(value=8, min=1, max=64))
def bars(M):
    figure, axes = plt.subplots(figsize=(6.4, 3))
    for kind, colour in (("F", "C0"), ("B", "C1")):
        found = [op for op in simulate("1f1b", 4, M).operations if op.kind == kind]
        axes.barh([op.stage for op in found], [float(op.end - op.start) for op in found],
                  left=[float(op.start) for op in found], color=colour)
    axes.invert_yaxis()
    plt.show()
"""}
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
    """Return the `Timing` of `interact` and matplotlib in a local JupyterLab, for each kind of chart."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(SETUP + code) for code in CHARTS.values()])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    timings = {}
    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(notebook, Path(folder) / "bench.ipynb")
        with jupyter_lab(folder) as lab:
            page, _ = watched_page(browser, viewport={"width": 1280, "height": 1400})
            open_notebook(page, lab, "bench.ipynb")
            run_all(page)
            for index, kind in enumerate(CHARTS):
                page.locator(".jp-OutputArea img").nth(index).wait_for(timeout=20_000)
                page.evaluate(PRESS, [index, 12])
                run = [page.evaluate(PRESS, [index, samples]) for _ in range(rounds)]
                timings[kind] = Timing(statistics.median(map(statistics.median, run)),
                                       statistics.median(map(p95, run)), float("nan"), samples * rounds)
            page.context.close()
    return timings


def table(drawn, compared):
    """Write the timings as lines of one table."""
    yield f"{'explorer':16} {'p50':>7} {'p95':>7} {'computing':>10} {'samples':>8}   beside interact"
    for name, one in drawn.items():
        kind = "bars" if name in BARS else "lines"
        beside = f"{kind}: {compared[kind].p50 / one.p50:.0f} times faster" if compared else ""
        late = "  OVER ONE FRAME" if one.p95 > FRAME else ""
        yield f"{name:16} {one.p50:7.1f} {one.p95:7.1f} {one.computing:10.1f} {one.samples:8}   {beside}{late}"
    for kind, one in compared.items():
        yield f"{'interact ' + kind:16} {one.p50:7.1f} {one.p95:7.1f} {'':10} {one.samples:8}"
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
        kind = "bars" if name in BARS else "lines"
        found.append(Row("explorers", f"{name}: slider to picture, p50", one.p50, f"interact and matplotlib, {kind}",
                         compared[kind].p50, "ms", 1 / TIMES_FASTER))
    return found
