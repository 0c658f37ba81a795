"""The icons of the book's pages, drawn here as strokes on a grid of 24 by 24, and the style sheet that shows them.

The theme marks an icon by a class such as `fa-list`, and would load a font and a script of 700 kB to draw it. Here each
class gets a mask: the shape is cut from the text's colour, so an icon follows the theme, light or dark.
"""

import re
from urllib.parse import quote

# Class -> what is drawn: paths of strokes, and, after "fill:", paths that are filled.
ICONS = {
    "fa-angle-left": ("M15 5 8 12l7 7",),
    "fa-angle-right": ("M9 5l7 7-7 7",),
    "fa-arrow-up": ("M12 20V4", "M5 11l7-7 7 7"),
    "fa-bars": ("M3 6h18", "M3 12h18", "M3 18h18"),
    "fa-chevron-down": ("M5 9l7 7 7-7",),
    "fa-circle-half-stroke": ("M12 3a9 9 0 1 0 0 18a9 9 0 1 0 0-18z", "fill:M12 3a9 9 0 0 1 0 18z"),
    "fa-code": ("M8 6l-6 6 6 6", "M16 6l6 6-6 6"),
    "fa-download": ("M12 3v12", "M6 10l6 6 6-6", "M4 21h16"),
    "fa-expand": ("M3 9V3h6", "M15 3h6v6", "M21 15v6h-6", "M9 21H3v-6"),
    "fa-file": ("M6 2h8l5 5v15H6z", "M14 2v5h5"),
    "fa-file-pdf": ("M6 2h8l5 5v15H6z", "M14 2v5h5", "M9 13h7", "M9 17h5"),
    "fa-github": ("M9 8L4 12l5 4", "M15 8l5 4-5 4"),
    "fa-lightbulb": ("M9 18h6", "M10 22h4", "M8 14a6 6 0 1 1 8 0c-1 1-1 2-1 4H9c0-2 0-3-1-4z"),
    "fa-list": ("M8 6h13", "M8 12h13", "M8 18h13", "fill:M3 5h2v2H3zM3 11h2v2H3zM3 17h2v2H3z"),
    "fa-magnifying-glass": ("M10 3a7 7 0 1 0 0 14a7 7 0 1 0 0-14z", "M15.5 15.5 21 21"),
    "fa-moon": ("M20 14A8.5 8.5 0 1 1 10 4a7 7 0 0 0 10 10z",),
    "fa-pencil-alt": ("M4 20l1-5L16 4l4 4L9 19z", "M13 7l4 4"),
    "fa-sun": ("M12 8a4 4 0 1 0 0 8a4 4 0 1 0 0-8z", "M12 1v3M12 20v3M1 12h3M20 12h3",
               "M4.2 4.2l2.1 2.1M17.7 17.7l2.1 2.1M4.2 19.8l2.1-2.1M17.7 6.3l2.1-2.1"),
    "fa-xmark": ("M5 5l14 14", "M19 5L5 19"),
}
# Of the theme's classes these name a font or a size, and no icon.
NOT_ICONS = {"fa-solid", "fa-regular", "fa-brands", "fa-lg", "fa-fw"}


def svg(name):
    """Return the icon of the class `name` as an SVG drawing.

    >>> svg("fa-angle-right").count("<path")
    1
    >>> "M9 5l7 7-7 7" in svg("fa-angle-right")
    True

    Raises ValueError when no icon is drawn for that class.
    """
    if name not in ICONS:
        raise ValueError(f"name = {name!r} is not allowed: the icons are {', '.join(ICONS)}")
    strokes = "".join(path for path in ICONS[name] if not path.startswith("fill:"))
    filled = "".join(path.removeprefix("fill:") for path in ICONS[name] if path.startswith("fill:"))
    fill = f'<path d="{filled}"/>' if filled else ""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24">{fill}<path d="{strokes}" fill="none" '
            'stroke="#000" stroke-width="2" stroke-linecap="round" stroke-linejoin="round"/></svg>')


def stylesheet():
    """Return the rules that draw the icons: one for all, and one for each shape."""
    rules = [f'.{name} {{ --icon: url("data:image/svg+xml,{quote(svg(name), safe=_AS_IT_IS)}"); }}' for name in ICONS]
    return "\n".join([_EACH, *rules, ""])


def missing(html):
    """Return the icons' classes in a page's HTML that have no drawing, sorted.

    >>> missing('<i class="fa-solid fa-list"></i> <i class="fas fa-rocket"></i>')
    ['fa-rocket']
    """
    classes = {name for found in re.findall(r'class="([^"]*)"', html) for name in found.split()}
    return sorted(name for name in classes if name.startswith("fa-") and name not in {*ICONS, *NOT_ICONS})


_AS_IT_IS = " '/:=;,()-"
# The weight of one class, so that the theme's own rules for what is shown and what is not still win.
_EACH = """:where(.fa-solid, .fa-brands, .fas, .fab, .fa) {
  display: inline-block; flex: none; width: 1em; height: 1em; vertical-align: -0.125em;
  background: currentColor; -webkit-mask: var(--icon) center / contain no-repeat;
  mask: var(--icon) center / contain no-repeat;
}
.fa-lg { font-size: 1.25em; }
/* The address of an explorer: each icon is a drawing to be read, and the explorer comes first. */
.opening :where(.fa-solid, .fa-brands, .fas, .fab, .fa) { background: none; -webkit-mask: none; mask: none; }
@media (forced-colors: active) {
  :where(.fa-solid, .fa-brands, .fas, .fab, .fa) { background: ButtonText; forced-color-adjust: none; }
}
"""
