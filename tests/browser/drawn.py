"""What a chart shows, read from Vega's scenegraph, and where it differs from what it should show."""

import math
from pathlib import Path

READ = Path(__file__).with_name("drawn.js").read_text(encoding="utf-8")


def drawn(figure):
    """Return what the explorer `figure` (a Playwright locator) shows: {mark name: {type, items, palettes}}."""
    return figure.evaluate(READ)


def differences(expected, shown):
    """Return in words where `shown` (of `drawn`) is not `expected` (of an oracle); an empty list where it is."""
    unasked = [name for name in sorted(set(shown) - set(expected)) if shown[name]["items"]]
    found = [f"{name}: drawn, but the oracle does not say what it should be" for name in unasked]
    for name, rows in expected.items():
        mark = shown.get(name, {"items": [], "palettes": {}})
        found += [f"{name}: {text}" for text in _compare(rows, mark)]
    return found


def _compare(rows, mark):
    rows = [_translated(row, mark["palettes"]) for row in rows]
    channels = sorted({channel for row in rows for channel in row})
    if any(set(row) != set(channels) for row in rows):
        raise ValueError(f"the oracle's rows must all have the same channels, and have {channels} together")
    items = [{channel: item.get(channel) for channel in channels} for item in mark["items"]]
    slack = {channel: 1e-6 * max((abs(row[channel]) for row in rows if _is_number(row[channel])), default=0)
             for channel in channels}
    rows.sort(key=_rough)
    items.sort(key=_rough)
    pairs = list(zip(rows, items, strict=False))
    missing = [row for row, item in pairs if not _close(row, item, slack)] + rows[len(pairs):]
    extra = [item for row, item in pairs if not _close(row, item, slack)] + items[len(pairs):]
    for row in list(missing):  # sorting on rough values can swap two neighbours: look for each among all
        match = next((item for item in extra if _close(row, item, slack)), None)
        if match is not None:
            missing.remove(row)
            extra.remove(match)
    if not missing and not extra:
        return []
    return [f"{len(rows)} items expected, {len(items)} drawn; expected and not drawn: {_few(missing)}; "
            f"drawn and not expected: {_few(extra)}"]


def _translated(row, palettes):
    """Numbers as floats, the ends of an interval in order, and a value on a palette as what it is drawn with."""
    result = {}
    for channel, value in row.items():
        for entry, look in palettes.get(channel, []):
            if entry == value:
                value = look
        result[channel] = value if isinstance(value, str | list | None) else float(value)
    return _ordered(result)


def _ordered(row):
    for first, second in (("x", "x2"), ("y", "y2")):
        if _is_number(row.get(first)) and _is_number(row.get(second)) and row[second] < row[first]:
            row = row | {first: row[second], second: row[first]}
    return row


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rough(row):
    return [(f"{value:+.3e}" if _is_number(value) else str(value)) for _, value in sorted(row.items())]


def _close(row, item, slack):
    item = _ordered(item)
    return all(
        math.isclose(value, item[channel], rel_tol=1e-5, abs_tol=slack[channel])
        if _is_number(value) and _is_number(item[channel]) else value == item[channel]
        for channel, value in row.items())


def _few(rows):
    return f"{rows[:3]}{' and ' + str(len(rows) - 3) + ' more' if len(rows) > 3 else ''}"
