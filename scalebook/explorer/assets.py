"""The scripts and styles of the explorers, as the build and the widgets need them.

Nothing minified lies in the repository: Vega comes from the package that draws the still pictures. A page has its
charts compiled, so it needs Vega alone; a kernel sends them as they were written, and Vega-Lite with them.
"""

import re
from functools import cache
from pathlib import Path

from scalebook.explorer.spec import VEGALITE

HERE = Path(__file__).parent


# What the package has in it bears these names. Without the interpreter of its expressions Vega would need eval.
PARTS = "https://cdn.jsdelivr.net/npm/{}/+esm"
PAGE = f"""
import {{ View, parse }} from "{PARTS.format("vega@6.2.0")}";
import {{ expressionInterpreter }} from "{PARTS.format("vega-interpreter@2.0.0")}";
window.vega = {{ View, parse, expressionInterpreter }};
"""


@cache
def page_bundle():
    """Vega and its interpreter of expressions as one classic script that sets `window.vega`."""
    return _wrapped(PAGE)


@cache
def vega_bundle():
    """Vega, Vega-Lite and vega-embed as one classic script that sets `window.vegaEmbed`."""
    carried = HERE / "vega.js"
    if carried.exists():  # a copy of the library that travels inside a notebook brings the script along
        return carried.read_text(encoding="utf-8")
    return _wrapped(None)


def _wrapped(snippet):
    """Bundle a snippet with what it uses, in a function: its top-level names would clash with a page's others."""
    import vl_convert

    return "(function () {\n" + vl_convert.javascript_bundle(snippet, vl_version=VEGALITE) + "\n})();\n"


def module():
    """The ES module: `render` for anywidget."""
    return "".join((HERE / name).read_text(encoding="utf-8") for name in ("reading.js", "explorer.js"))


def page_script():
    """The same source as a classic script, which also works from a page opened from disk."""
    source, count = re.subn(r"^export default .*$", "start(document.currentScript.src);", module(), flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"explorer.js has {count} default exports; the page's script needs exactly one to replace")
    return "(function () {\n" + source + "})();\n"


def stylesheet():
    """The style sheet of the figures."""
    return (HERE / "explorer.css").read_text(encoding="utf-8")
