"""How long a slider's change takes to be drawn.

Measured in the page, for one change of one control: from just before the `input` event is dispatched, through the
handler (signals, marks), the renderer, and the next frame's style, layout and paint, to the first task after that
frame was handed to the compositor (a message posted from its `requestAnimationFrame`). The wait for the next tick of
a 60 Hz display, 0 to 16.7 ms for everybody, is not in it: Chromium runs without the frame-rate limit. Rasterising in
the compositor's thread is not in it either.

The states are drawn at random (with a seed) over all positions of all controls, so the heaviest charts are among
them; each sample changes one control.
"""

import random
import statistics
from dataclasses import dataclass

from tests.browser.moving import Explorer
from tests.chromium import chromium

UNLIMITED = ("--disable-frame-rate-limit", "--disable-gpu-vsync")
FRAME = 1000 / 60  # ms
WARM_UP = 30

MEASURE = """async ([moves]) => {
  const rest = () => new Promise((done) => setTimeout(done, 0));
  const painted = () => new Promise((done) => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => { channel.port1.close(); done(performance.now()); };
    channel.port2.postMessage(null);
  }));
  const times = [];
  for (const [identity, position] of moves) {
    const input = document.getElementById(identity);
    if (input.type === "checkbox") input.checked = position; else input.value = position;
    await painted();
    await rest();
    const start = performance.now();
    input.dispatchEvent(new Event("input", { bubbles: true }));
    await null; await null; await null;
    const computed = performance.now();
    times.push([(await painted()) - start, computed - start]);
  }
  return times;
}"""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one explorer: the medians, over the rounds, of each round's p50 and p95."""

    p50: float
    p95: float
    computing: float
    samples: int


def unlimited_chromium(playwright=None):
    """A headless Chromium, for the time of a block, that draws a frame as soon as there is one to draw."""
    return chromium(*UNLIMITED, playwright=playwright)


def p95(times):
    """The 95th percentile.

    >>> p95(range(101))
    95.0
    """
    return statistics.quantiles(times, n=20, method="inclusive")[-1]


def measure(page, figure, samples=100, rounds=3):
    """Time an explorer (a `site_pages.Figure`) of an open page."""
    explorer = Explorer(page, figure)
    generator = random.Random(figure.identity)
    stands = dict(explorer.first)
    page.evaluate(MEASURE, [moves(figure, stands, generator, WARM_UP)])
    run = [page.evaluate(MEASURE, [moves(figure, stands, generator, samples)]) for _ in range(rounds)]
    explorer.reset()
    whole = [[total for total, _ in times] for times in run]
    return Timing(statistics.median(map(statistics.median, whole)), statistics.median(map(p95, whole)),
                  statistics.median(computed for times in run for _, computed in times), rounds * samples)


def moves(figure, stands, generator, count):
    """Changes of one control each, to a position where it does not stand; `stands` is kept up to date."""
    chosen = []
    for _ in range(count):
        one = generator.choice(figure.inputs)
        position = generator.choice([other for other in one.positions if other != stands[one.signal]])
        stands[one.signal] = position
        chosen.append([one.identity, position])
    return chosen
