"""Move the controls of an explorer in a page, as a reader does, and look at the chart.

Every question to the page costs milliseconds on the way there and back, and the tests ask thousands: so one question
asks for all that is wanted at one time.
"""

from dataclasses import dataclass
from functools import lru_cache

from tests.browser.drawn import READ, differences
from tests.browser.looks import picture

PUT = """(moves) => {
  for (const [identity, position] of moves) {
    const input = document.getElementById(identity);
    if (input.type === "checkbox") input.checked = position; else input.value = position;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }
}"""
# As a reader who comes to an input by keyboard: it is focused, and says where it stands.
FOCUS = """(identity) => {
  const input = document.getElementById(identity);
  input.focus();
  return input.type === "checkbox" ? input.checked : Number(input.value);
}"""
STAND = """(identities) => identities.map((identity) => {
  const input = document.getElementById(identity);
  return input.type === "checkbox" ? input.checked : Number(input.value);
})"""
LOOK = f"""(figure, inputs) => {{
  const texts = (input) => input.type === "checkbox" ? null
    : input.tagName === "SELECT" ? input.selectedOptions[0].textContent
    : document.querySelector(`output[for="${{input.id}}"]`).innerText;
  const each = (read) => Object.fromEntries(inputs.map(([name, identity]) =>
    [name, read(name, document.getElementById(identity))]));
  return {{
    values: each((name) => figure.explorer.view.signal(name)),
    texts: each((_, input) => texts(input)),
    disabled: each((_, input) => input.disabled),
    marks: ({READ.strip()})(figure),
  }};
}}"""
# Two frames later, what was drawn is on the screen. Gives the place of the chart in the page, scrolled to if need be.
PLACE = """async (figure) => {
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const element = figure.querySelector(".explorer-view");
  let box = element.getBoundingClientRect();
  if (box.top < 0 || box.bottom > innerHeight) {
    element.scrollIntoView({ block: "center", behavior: "instant" });
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    box = element.getBoundingClientRect();
  }
  return { x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height,
           whole: box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight && box.right <= innerWidth };
}"""


@dataclass(frozen=True)
class Look:
    """What an explorer shows at one time.

    By control: the value that the chart sees, the text beside it (a read-out, or the option chosen; None for a
    checkbox) and whether it is disabled. And of the chart the marks, as `drawn` gives them.
    """

    values: dict
    texts: dict
    disabled: dict
    marks: dict


class Explorer:
    """One explorer in an open page."""

    def __init__(self, page, figure):
        """Scroll to the figure (a `site_pages.Figure`) and wait until it is drawn."""
        self.page, self.figure = page, figure
        self.locator = page.locator(f"#{figure.identity}")
        self.locator.scroll_into_view_if_needed()
        page.locator(f"#{figure.identity}[data-state=ready]").wait_for()
        identities = [one.identity for one in figure.inputs]
        stand = dict(zip(identities, page.evaluate(STAND, identities), strict=True))
        self.first = {one.signal: stand[one.identity] for one in figure.inputs}

    @classmethod
    def kept(cls, page, figure):
        """An explorer of a page that tests share: its first positions are those of the page as it was opened."""
        found = cls(page, figure)
        found.first = page.first_positions.setdefault(figure.identity, found.first)
        found.reset()
        return found

    def input(self, one):
        """The locator of an input."""
        return self.page.locator(f"[id='{one.identity}']")

    def reset(self):
        """Put every control where the page has it at first."""
        self.page.evaluate(PUT, [[one.identity, self.first[one.signal]] for one in self.figure.inputs])

    def put(self, one, position):
        """Put an input at a position at once."""
        self.page.evaluate(PUT, [[one.identity, position]])

    def step(self, one, position):
        """Move an input to a neighbouring position with the keyboard or the mouse, as a reader does."""
        element = self.input(one)
        if one.kind == "checkbox":
            element.click()
        elif one.kind == "select":
            element.select_option(index=position)
        else:
            stood = self.page.evaluate(FOCUS, one.identity)
            self.page.keyboard.press("ArrowRight" if position > stood else "ArrowLeft")
        stands = self.stands(one)
        assert stands == position, f"{one.identity} was moved to {position} and stands at {stands}"

    def stands(self, one):
        """The position where an input stands."""
        return self.page.evaluate(STAND, [one.identity])[0]

    def disabled(self, one):
        """Whether the input is disabled."""
        return self.input(one).is_disabled()

    def look(self):
        """All that the explorer shows now, as a `Look`."""
        return Look(**self.locator.evaluate(LOOK, [[one.name, one.identity] for one in self.figure.inputs]))

    def pixels(self):
        """The picture of the chart, as bytes: equal bytes are equal pictures."""
        place = self.locator.evaluate(PLACE)
        assert min(place["width"], place["height"]) > 0, "the chart has no place in the page"
        return picture(self.page, place, beyond=not place.pop("whole"))

    def wrong(self, oracle, look=None):
        """Where the chart is not what the oracle says for the controls' values, now or at a `Look`, in words."""
        look = look or self.look()
        expected = _expected(oracle, tuple(look.values.items()))
        return [f"at {look.values}: {text}" for text in differences(expected, look.marks)]


@lru_cache(maxsize=256)
def _expected(oracle, values):
    """What an oracle says, computed once for the same values: it depends on nothing else."""
    return oracle(**dict(values))


def steps(positions):
    """Pairs of neighbouring positions: at the first, in the middle, and at the last.

    >>> steps((1, 2, 3, 4, 5)), steps((False, True))
    (((1, 2), (3, 4), (5, 4)), ((False, True), (True, False)))
    """
    middle = (len(positions) - 1) // 2
    pairs = [(positions[0], positions[1]), (positions[middle], positions[middle + 1]), (positions[-1], positions[-2])]
    return tuple(dict.fromkeys(pairs))
