"""What the theme brings and the book does not use is left out of the site.

The theme's style sheet holds a font of two thousand icons; the book draws its own dozen (`icons`). So the rules of that
font are cut from the sheet, and the font, its script and the maps for those who work on the theme are deleted.
"""

import re
import shutil
from pathlib import Path

UNUSED = ("scripts/fontawesome.js", "scripts/fontawesome.js.LICENSE.txt", "vendor/fontawesome", "webpack-macros.html",
          "sbt-webpack-macros.html")
SHEET = "styles/pydata-sphinx-theme.css"
_ICON_FONT = re.compile(r"Font ?Awesome|var\(--fa-(font|style|display|animation|border|rotate|pull|li|inverse|stack)")
_ICON_CLASS = re.compile(r"\.fa(?:[srbldt]|-[a-z0-9-]+)?(?![a-z0-9_-])")


def without_icon_font(sheet):
    """Return a style sheet without the rules of the icon font: its faces, its variables and its classes.

    >>> without_icon_font(".fa-car:before{content:'x'}p{margin:0}@font-face{font-family:Font Awesome 6 Free}")
    'p{margin:0}'
    >>> without_icon_font("@media print{.fas{margin:0}a{color:red}}")
    '@media print{a{color:red}}'
    """
    return "".join(_kept(prelude, body) for prelude, body in _rules(_without_comments(sheet)))


def _kept(prelude, body):
    if body is None:
        return prelude
    if prelude.startswith(("@media", "@supports")):
        inside = without_icon_font(body)
        return f"{prelude}{{{inside}}}" if inside else ""
    if prelude.startswith("@keyframes fa-") or prelude.startswith("@-webkit-keyframes fa-"):
        return ""
    if prelude == "@font-face" and _ICON_FONT.search(body):
        return ""
    if prelude.startswith("@"):
        return f"{prelude}{{{body}}}"
    selectors = [one for one in _split(prelude, ",") if not _ICON_CLASS.search(one)]
    declarations = [one for one in _split(body, ";") if not one.startswith("--fa-") and not _ICON_FONT.search(one)]
    return f"{','.join(selectors)}{{{';'.join(declarations)}}}" if selectors and any(declarations) else ""


def _without_comments(sheet):
    return re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL)


def _rules(sheet):
    """Yield (prelude, body) of each rule, and (statement, None) of one without a body such as `@charset`."""
    start = depth = 0
    prelude = ""
    for place, sign in _signs(sheet):
        if sign == "{":
            depth += 1
            if depth == 1:
                prelude, start = sheet[start:place].strip(), place + 1
        elif sign == "}":
            depth -= 1
            if depth == 0:
                yield prelude, sheet[start:place].strip()
                start = place + 1
        elif sign == ";" and depth == 0:
            yield sheet[start : place + 1].strip(), None
            start = place + 1
    if depth or sheet[start:].strip():
        raise ValueError(f"a style sheet ends inside a rule: {sheet[start:][:60]!r}")


def _signs(sheet):
    """Yield (place, sign) of the braces and semicolons that are in no string and no url()."""
    for found in re.finditer(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|url\([^"\')]*\)|[{};,]', sheet):
        if len(found[0]) == 1:
            yield found.start(), found[0]


def _split(text, separator):
    """Split at a separator that stands in no string, no url() and no parentheses."""
    parts, start = [], 0
    for place, sign in _signs(text):
        if sign == separator and text.count("(", start, place) == text.count(")", start, place):
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def trim(static):
    """Cut what is not used from the folder `_static` of a built site."""
    static = Path(static)
    sheet = static / SHEET
    sheet.write_text(without_icon_font(sheet.read_text(encoding="utf-8")), encoding="utf-8")
    for name in UNUSED:
        path = static / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for source_map in static.rglob("*.map"):
        source_map.unlink()
