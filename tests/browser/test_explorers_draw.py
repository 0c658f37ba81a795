"""Every control of every explorer: moved one step, the chart changes, and shows what Python computes.

What it should show says the explorer's oracle (`tests/browser/oracles`, whose docstring is for authors).
"""

import pytest

from tests.browser.moving import steps
from tests.browser.oracles import ORACLES
from tests.browser.site_pages import MISSING, SITE, explorers, html_of, originals

pytestmark = pytest.mark.browser
FIGURES = originals()
CONTROLS = [(figure, one) for figure in FIGURES for one in figure.inputs]


def test_every_explorer_has_an_oracle_and_every_oracle_an_explorer():
    assert (SITE / "index.html").exists(), MISSING
    names = [figure.name for figure in FIGURES]
    assert len(names) == len(set(names)), "two explorers of the book have one name"
    assert set(names) == set(ORACLES)


@pytest.mark.parametrize("figure", [one for one in explorers() if one.is_shown_again], ids=lambda one: one.label)
def test_an_explorer_that_another_page_shows_again_is_the_chapters_to_the_letter(figure):
    """So what is proved of the chapter's own holds for it."""
    [original] = [one for one in FIGURES if one.name == figure.name]
    assert html_of(figure) == html_of(original)


@pytest.mark.parametrize("explorer", FIGURES, indirect=True, ids=lambda figure: figure.label)
def test_an_explorer_first_shows_what_python_computes(explorer):
    assert explorer.wrong(ORACLES[explorer.figure.name]) == []
    assert explorer.pixels() == explorer.pixels(), "the chart must stand still, or a change would prove nothing"


@pytest.mark.parametrize(("explorer", "one"), CONTROLS, indirect=["explorer"],
                         ids=[f"{figure.name}-{one.name}" for figure, one in CONTROLS])
def test_a_step_of_a_control_draws_what_python_computes_for_it(explorer, one):
    assert check_control(explorer, one, ORACLES[explorer.figure.name]) == []


def check_control(explorer, one, oracle):
    """Return, in words, all that is wrong with a control at its first, middle and last position."""
    problems = []
    if not make_it_apply(explorer, one):
        return [f"{one.identity} is disabled whatever the other controls say"]
    moved = 0
    for start, end in steps(one.positions):
        explorer.put(one, start)
        look = explorer.look()
        if look.disabled[one.name]:
            continue
        problems += explorer.wrong(oracle, look)
        before = explorer.pixels()
        explorer.step(one, end)
        moved += 1
        if explorer.pixels() == before:
            problems.append(f"{one.identity}: from {start} to {end} nothing changes in the picture")
        look = explorer.look()
        problems += explorer.wrong(oracle, look)
        problems += wrong_reading(look, one)
    return problems if moved else [f"{one.identity} disables itself at every position"]


def make_it_apply(explorer, one):
    """Find a setting of one other control at which this one is enabled; the default, if it is enabled there."""
    if not explorer.disabled(one):
        return True
    for other in explorer.figure.inputs:
        for position in other.positions if other != one else ():
            explorer.put(other, position)
            if not explorer.disabled(one):
                return True
        explorer.put(other, explorer.first[other.signal])
    return False


def wrong_reading(look, one):
    """Whether the page's read-out says another number than the chart sees."""
    text, value = look.texts[one.name], look.values[one.name]
    try:
        number = float(text)
    except (TypeError, ValueError):
        return []
    if isinstance(value, str) or number == pytest.approx(value, abs=1e-9):
        return []
    return [f"{one.identity} reads {text}, and the chart sees {value}"]
