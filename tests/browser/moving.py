"""Move the controls of an explorer in a page, as a reader does, and look at the chart."""

from tests.browser.drawn import differences, drawn

PUT = """(input, position) => {
  if (input.type === "checkbox") input.checked = position; else input.value = position;
  input.dispatchEvent(new Event("input", { bubbles: true }));
}"""
STANDS = "(input) => input.type === 'checkbox' ? input.checked : Number(input.value)"
FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Explorer:
    """One explorer in an open page."""

    def __init__(self, page, figure):
        """Scroll to the figure (a `site_pages.Figure`) and wait until it is drawn."""
        self.page, self.figure = page, figure
        self.locator = page.locator(f"#{figure.identity}")
        self.locator.scroll_into_view_if_needed()
        page.locator(f"#{figure.identity}[data-state=ready]").wait_for(timeout=20_000)
        self.first = {one.signal: self.input(one).evaluate(STANDS) for one in figure.inputs}

    def input(self, one):
        """The locator of an input."""
        return self.page.locator(f"[id='{one.identity}']")

    def reset(self):
        """Put every control where the page has it at first."""
        for one in self.figure.inputs:
            self.put(one, self.first[one.signal])

    def put(self, one, position):
        """Put an input at a position at once."""
        self.input(one).evaluate(PUT, position)

    def step(self, one, position):
        """Move an input to a neighbouring position with the keyboard or the mouse, as a reader does."""
        element = self.input(one)
        if one.kind == "checkbox":
            element.click()
        elif one.kind == "select":
            element.select_option(index=position)
        else:
            element.focus()
            self.page.keyboard.press("ArrowRight" if position > element.evaluate(STANDS) else "ArrowLeft")
        stands = element.evaluate(STANDS)
        assert stands == position, f"{one.identity} was moved to {position} and stands at {stands}"

    def disabled(self, one):
        """Whether the input is disabled."""
        return self.input(one).is_disabled()

    def values(self):
        """What the chart sees of each control, by name."""
        return {one.name: self.locator.evaluate("(f, name) => f.explorer.view.signal(name)", one.name)
                for one in self.figure.inputs}

    def shown(self, one):
        """What the page says of the control beside it: its read-out or the option chosen."""
        if one.kind == "checkbox":
            return None
        if one.kind == "select":
            return self.input(one).evaluate("(select) => select.selectedOptions[0].textContent")
        return self.page.locator(f"output[for='{one.identity}']").inner_text()

    def drawn(self):
        """What the chart shows."""
        return drawn(self.locator)

    def pixels(self):
        """The picture of the chart, as bytes."""
        self.page.evaluate(FRAMES)
        return self.locator.locator(".explorer-view").screenshot()

    def wrong(self, oracle):
        """Where the chart is not what the oracle says for the controls' present values, in words."""
        values = self.values()
        return [f"at {values}: {text}" for text in differences(oracle(**values), self.drawn())]


def steps(positions):
    """Pairs of neighbouring positions: at the first, in the middle, and at the last.

    >>> steps((1, 2, 3, 4, 5)), steps((False, True))
    (((1, 2), (3, 4), (5, 4)), ((False, True), (True, False)))
    """
    middle = (len(positions) - 1) // 2
    pairs = [(positions[0], positions[1]), (positions[middle], positions[middle + 1]), (positions[-1], positions[-2])]
    return tuple(dict.fromkeys(pairs))
