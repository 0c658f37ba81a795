"""What the theme brings and the book does not use is left out of the site.

The theme's style sheet holds a font of two thousand icons; the book draws its own dozen (`icons`). So the rules of that
font are cut from the sheet, and the font, its script and the maps for those who work on the theme are deleted. Of all
style sheets, the rules for classes that no page and no script of the site names go, too: two thirds of 490 kB.
"""

import re
import shutil
from pathlib import Path

UNUSED = ("scripts/fontawesome.js", "scripts/fontawesome.js.LICENSE.txt", "vendor/fontawesome", "webpack-macros.html",
          "sbt-webpack-macros.html")
SHEET = "styles/pydata-sphinx-theme.css"
_ICON_FONT = re.compile(r"Font ?Awesome|var\(--fa-(font|style|display|animation|border|rotate|pull|li|inverse|stack)")
_NAME = re.compile(r"[.#]((?:\\.|[\w-])+)")
_ATTRIBUTE = re.compile(r'\b(?:class|id)="([^"]*)"')
_SCRIPT = re.compile(r"<script([^>]*)>(.*?)</script>", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][\w-]*")
_BRACKETS, _PARENTHESES = re.compile(r"\[[^\]]*\]"), re.compile(r"\([^()]*\)")
TRIMMED = "/* without the rules that no page of this site has a use for */\n"
BUNDLE = "vega.js"  # draws into pictures: it asks for no style
_ICON_CLASS = re.compile(r"\.fa(?:[srbldt]|-[a-z0-9-]+)?(?![a-z0-9_-])")


def without_icon_font(sheet):
    """Return a style sheet without the rules of the icon font: its faces, its variables and its classes.

    >>> without_icon_font(".fa-car:before{content:'x'}p{margin:0}@font-face{font-family:Font Awesome 6 Free}")
    'p{margin:0}'
    >>> without_icon_font("@media print{.fas{margin:0}a{color:red}}")
    '@media print{a{color:red}}'
    """
    return _filtered(sheet, _without_icons)


def _without_icons(prelude, body):
    if re.match(r"@(-webkit-)?keyframes fa-", prelude) or (prelude == "@font-face" and _ICON_FONT.search(body)):
        return ""
    if prelude.startswith("@"):
        return f"{prelude}{{{body}}}"
    selectors = [one for one in _split(prelude, ",") if not _ICON_CLASS.search(one)]
    declarations = [one for one in _split(body, ";") if not one.startswith("--fa-") and not _ICON_FONT.search(one)]
    return f"{','.join(selectors)}{{{';'.join(declarations)}}}" if selectors and any(declarations) else ""


def without_unused(sheet, names, beginnings=()):
    """Return a style sheet without the rules whose class or identifier is not in `names`.

    A name is also used when it begins with one of `beginnings`, which scripts complete. What stands in parentheses or
    brackets, as in `:not(.a)`, is no reason to cut a rule.

    >>> without_unused(".a{x:1}.b p,.a>.c-2{x:1}@media print{#b{x:1}}p:not(.b){x:1}", {"a"}, ("c-",))
    '.a{x:1}.a>.c-2{x:1}p:not(.b){x:1}'
    """
    def kept(prelude, body):
        if prelude.startswith("@"):
            return f"{prelude}{{{body}}}"
        selectors = [one for one in _split(prelude, ",") if _all_used(one, names, beginnings)]
        return f"{','.join(selectors)}{{{body}}}" if selectors else ""

    return _filtered(sheet, kept)


def _filtered(sheet, kept):
    """Write a sheet with what `kept` gives for each rule, also within conditions; a condition left empty goes."""
    written = []
    for prelude, body in _rules(_without_comments(sheet)):
        if body is None:
            written.append(prelude)
        elif prelude.startswith(("@media", "@supports", "@container")):
            inside = _filtered(body, kept)
            written.append(f"{prelude}{{{inside}}}" if inside else "")
        else:
            written.append(kept(prelude, body))
    return "".join(written)


def _all_used(selector, names, beginnings):
    """Whether all classes and identifiers that a selector asks for are used."""
    bare, inner = _BRACKETS.sub("", selector), 1
    while inner:
        bare, inner = _PARENTHESES.subn("", bare)
    asked = (re.sub(r"\\(.)", r"\1", name) for name in _NAME.findall(bare))
    return all(name in names or name.startswith(beginnings) for name in asked)


def used(site):
    """Return the names that pages and scripts of a built site use, and the beginnings of names made by scripts.

    Of a script every word counts, since any may be the name of a class; a word that ends in a hyphen is a beginning.
    """
    names, words = set(), set()
    for page in Path(site).rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        for found in _ATTRIBUTE.findall(html):
            names.update(found.split())
        for attributes, body in _SCRIPT.findall(html):
            if "json" not in attributes:
                words.update(_WORD.findall(body))
    for script in Path(site).rglob("*.js"):
        if script.name != BUNDLE:
            words.update(_WORD.findall(script.read_text(encoding="utf-8")))
    return names | words, tuple(sorted(word for word in words if word.endswith("-") and len(word) > 2))


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


def trim(site, originals):
    """Cut what is not used from a built site.

    `originals` is a folder that keeps the style sheets whole: the next build may have a use for more of them, and does
    not bring them again when none of its pages has changed.
    """
    static = Path(site) / "_static"
    for name in UNUSED:
        path = static / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for source_map in static.rglob("*.map"):
        source_map.unlink()
    names, beginnings = used(site)
    for path in static.rglob("*.css"):
        whole = Path(originals) / path.relative_to(static)
        sheet = path.read_text(encoding="utf-8")
        if not sheet.startswith(TRIMMED):
            whole.parent.mkdir(parents=True, exist_ok=True)
            whole.write_text(sheet, encoding="utf-8")
        sheet = whole.read_text(encoding="utf-8")
        if path == static / SHEET:
            sheet = without_icon_font(sheet)
        path.write_text(TRIMMED + without_unused(sheet, names, beginnings), encoding="utf-8")
