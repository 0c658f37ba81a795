"""The explorers of every chapter in a real JupyterLab: cells run, sliders drag, Python reads and sets them."""

import json
import shutil
import socket

import psutil
import pytest

from scalebook.book import notebooks
from tests.browser.drawn import drawn
from tests.browser.site_pages import ROOT
from tests.chromium import chromium, watched_page
from tests.live.lab import ask, jupyter_lab, open_notebook, run_all

# One JupyterLab serves all chapters, so they stay on one worker.
pytestmark = [pytest.mark.live, pytest.mark.timeout(600), pytest.mark.xdist_group("JupyterLab")]
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
# To run a chapter takes up to a minute: every run tries these, `make test-all` all.
ALWAYS = ("00_collectives", "04_pipeline_parallelism")
# Run once a chapter, since it looks at every object of the kernel: the explorers on show, by name. More than one copy
# of a name would be two views of one box.
FIND = """
import gc, json
from scalebook.explorer import Explorer
shown = {one.name: one for one in gc.get_objects() if type(one) is Explorer and one._box is not None}
"""
# Every drawn explorer of the page, with the words that its chart says of itself.
DESCRIBE = """() => [...document.querySelectorAll(".jp-OutputArea .explorer-view")].map((view) => {
  const holder = view.parentElement;
  return holder.explorer ? holder.explorer.view.description() : null;
})"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    for chapter in CHAPTERS:
        shutil.copy(chapter, folder)
    with jupyter_lab(folder) as started:
        yield started


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.mark.parametrize("chapter", [
    pytest.param(path, id=path.stem, marks=[] if path.stem in ALWAYS else pytest.mark.slow) for path in CHAPTERS])
def test_sliders_and_python_move_the_charts_of_a_chapter(lab, browser, chapter):
    page, watch = watched_page(browser, viewport={"width": 1400, "height": 1000})
    try:
        open_notebook(page, lab, chapter.name)
        run_all(page)
        explorers = json.loads(ask(page, FIND + "print(json.dumps({n: e.alt for n, e in shown.items()}))"))
        assert len(explorers) >= (1 if chapter.stem.startswith("00") else 3), "a chapter has at least three explorers"
        for name, words in explorers.items():
            check_explorer(page, name, words)
        check_predictions(page, chapter)
        assert watch.foreign == []
        assert [error for error in watch.errors if "explorer" in error.lower() or "vega" in error.lower()] == []
    finally:
        page.context.close()


def test_the_chapters_that_every_run_tries_are_there():
    assert set(ALWAYS) < {path.stem for path in CHAPTERS}


def check_explorer(page, name, words):
    """Set the explorer's first slider from Python, then move it with keyboard and mouse; look at the chart each time.

    An explorer that has lists only is set from Python.
    """
    figure = shown_figure(page, words)
    control, trait, positions, slides = json.loads(ask(page, f"""
e = shown[{name!r}]
sliders = [c for c in e.controls if c.kind in ("IntSlider", "FloatSlider", "SelectionSlider")]
c = [*sliders, *e.controls][0]
print(json.dumps([c.name, c.trait, [c.positions[0], c.positions[1], c.positions[-1]], bool(sliders)]))"""))
    read = f"print(json.dumps([shown[{name!r}].widgets[{control!r}].{trait}, shown[{name!r}].view.drawn]))"

    def set_from_python(position):
        ask(page, f"shown[{name!r}].widgets[{control!r}].{trait} = {position!r}")

    set_from_python(positions[0])
    first = settled(page, figure)
    set_from_python(positions[2])
    last = settled(page, figure, other_than=first)
    set_from_python(positions[0])
    assert settled(page, figure, other_than=last) == first, "the chart must follow Python there and back"
    if not slides:
        return

    handle = first_slider(figure)
    handle.focus()
    page.keyboard.press("ArrowRight")
    moved = settled(page, figure, other_than=first)
    wanted = nine_digits(positions[1])  # a step of a browser's slider and one of Python may differ in the last digit
    found = wait_for(lambda: nine_digits(json.loads(ask(page, read))[0]), wanted)
    assert found == wanted, "Python reads what was moved"
    assert moved != last or positions[1] == positions[2]
    drag(page, handle)
    dragged = settled(page, figure, other_than=moved)
    value = wait_for(lambda: json.loads(ask(page, read))[0] != positions[1], True)
    assert value, "Python reads what was dragged"
    assert dragged != first


def check_predictions(page, chapter):
    """Open every choice of the chapter's last prediction; all predictions are there."""
    groups = page.locator(".jp-OutputArea .prediction")
    assert groups.count() == sum(cell["id"].startswith("predict-") for cell in notebooks.read(chapter).cells)
    for folded in groups.last.locator("details").all():
        assert folded.locator("p").is_hidden()
        folded.locator("summary").click()
        assert folded.locator("p").is_visible()
        assert folded.locator("summary").bounding_box()["height"] >= 40, "the style sheet came along"


def nine_digits(value):
    """A number rounded to nine digits; anything else as it is."""
    return round(value, 9) if isinstance(value, float) else value


def shown_figure(page, words):
    """The element that holds the explorer whose chart describes itself with `words`, scrolled into view."""
    page.wait_for_function(f"(words) => ({DESCRIBE})().includes(words)", arg=words)
    index = page.evaluate(DESCRIBE).index(words)
    figure = page.locator(".jp-OutputArea .explorer-view").nth(index).locator("xpath=..")
    figure.scroll_into_view_if_needed()
    return figure


def settled(page, figure, other_than=None, seconds=10):
    """What the chart shows, once it shows something else than `other_than`."""
    for _ in range(seconds * 20):
        found = drawn(figure)
        if found != other_than:
            return found
        page.wait_for_timeout(50)
    raise AssertionError("the chart does not change")


def wait_for(read, wanted, tries=100):
    """Read until the answer is as wanted, and return the last answer."""
    for _ in range(tries):
        found = read()
        if found == wanted:
            break
    return found


def first_slider(figure):
    """The handle of the first slider in the box above the chart."""
    box = figure.locator("xpath=ancestor::*[contains(@class, 'widget-vbox')][1]")
    return box.locator(".noUi-handle, .ui-slider-handle").first


def drag(page, handle):
    """Drag the handle to the right with the mouse."""
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, box["y"] + box["height"] / 2, steps=6)
    page.mouse.up()


def test_nothing_of_jupyterlab_is_left_when_it_ends(tmp_path):
    with jupyter_lab(tmp_path) as lab:
        family = [lab.process, *lab.process.children(recursive=True)]
        port = int(lab.address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
    assert not [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    assert list(tmp_path.iterdir()) == []
