"""Mathematics is typeset when the book is built: MathJax writes each formula as HTML, and the page needs no script.

So no page shows raw TeX first and moves when it is replaced, formulas stand there from disk and without JavaScript,
and TeX that MathJax does not understand ends the build. A page gets the style of the characters that it uses; the fonts
lie in the site. MathJax itself comes from PyPI, and so does the JavaScript engine that runs it (V8, by mini-racer).

A displayed equation that has a label (`$$ ... $$ (eq-name)` in MyST) is numbered within its chapter, and the text names
it by its number: `{eq}`eq-name`` becomes "(4.2)", a link.
"""

import atexit
import importlib.util
import shutil
from functools import cache
from html import escape
from pathlib import Path

from docutils import nodes

from scalebook.book import equations

PARTS = ("loader.js", "core.js", "adaptors/liteDOM.js", "input/tex-full.js", "output/chtml.js",
         "output/chtml/fonts/tex.js", "a11y/assistive-mml.js")
FONTS = "output/chtml/fonts/woff-v2"
IN_SITE = "_static/mathjax"
RENDERER = "mathjax-in-the-build"
_FONT_URL = "FONTS-OF-THE-PAGE"


def setup(app):
    """Make it the book's way to write mathematics."""
    app.add_html_math_renderer(RENDERER, (_visit_inline, None), (_visit_display, None))
    app.connect("config-inited", _configure)
    app.connect("doctree-read", number_equations)
    app.connect("html-page-context", _add_style)
    app.connect("build-finished", _copy_fonts)


def _configure(app, config):
    config.html_math_renderer = RENDERER
    config.math_numfig = False  # equations have their own numbers, and not those of figures


def package():
    """The folder of MathJax's own files."""
    return Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"


class Typesetter:
    """MathJax in an engine of its own."""

    def __init__(self):
        """Start the engine and load MathJax."""
        from py_mini_racer import MiniRacer

        self._engine = MiniRacer()
        self._engine.eval("var window = globalThis, global = globalThis, MathJax = {loader: {load: []}};"
                          "var console = {log() {}, warn() {}, error() {}};")
        for part in PARTS:
            self._engine.eval((package() / part).read_text(encoding="utf-8"))
        self._engine.eval(Path(__file__).with_suffix(".js").read_text(encoding="utf-8"))
        self._engine.call("begin", _FONT_URL)

    def typeset(self, tex, display=False):
        """Return a formula as HTML. Raises ValueError, with the TeX and MathJax's words, when it is not understood.

        >>> "mjx-msup" in typesetter().typeset("x^2")
        True
        """
        from py_mini_racer import JSEvalException

        try:
            return self._engine.call("typeset", tex, display)
        except JSEvalException as error:
            reason = next((line for line in reversed(str(error).splitlines()) if line.strip(" ^")), "unknown")
            raise ValueError(f"the formula {tex!r} is not understood by MathJax: {reason[:200]}") from None

    def style(self, root=""):
        """Return the style sheet of all that was typeset since `forget`; `root` leads from the page to the site's."""
        return self._engine.call("style").replace(_FONT_URL, f"{root}{IN_SITE}")

    def forget(self):
        """Begin the style of another page."""
        self._engine.call("forget")

    def close(self):
        """End the engine."""
        self._engine.close()


@cache
def typesetter():
    """The process's typesetter: it takes half a second to start."""
    made = Typesetter()
    atexit.register(made.close)
    return made


def display_tex(text, nowrap=False):
    r"""Return the TeX of a displayed equation as Sphinx writes it: paragraphs are lines, and `\\` aligns at `&`.

    >>> print(display_tex(r"a &= b \\ &= c"))
    \begin{split}a &= b \\ &= c\end{split}
    """
    if nowrap:
        return text
    parts = [part for part in text.split("\n\n") if part.strip()]
    lines = [rf"\begin{{split}}{part}\end{{split}}" if r"\\" in part else part for part in parts]
    return lines[0] if len(lines) == 1 else r"\begin{aligned}" + r"\\".join(lines) + r"\end{aligned}"


def _visit_inline(translator, node):
    translator.body.append(translator.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    translator.body.append(_typeset(translator, node, node.astext(), display=False) + "</span>")
    raise nodes.SkipNode


def _visit_display(translator, node):
    translator.body.append(translator.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node.get("label"):
        number = escape(node["number"])
        translator.body.append(f'<a class="eqno" href="#{node["ids"][0]}" title="Link to this equation">({number})</a>')
    translator.body.append(_typeset(translator, node, display_tex(node.astext(), node["nowrap"]), display=True))
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def _typeset(translator, node, tex, display):
    try:
        return typesetter().typeset(tex, display)
    except ValueError as error:
        raise ValueError(f"{translator.builder.current_docname}: {error}") from error


def number_equations(app, doctree):
    """Number a page's labelled equations within its chapter: "4.2" is the second of chapter 4.

    Raises ValueError for an environment that stands outside dollar signs, since it would get a random label.
    """
    docname = app.env.docname
    known = app.env.get_domain("math").equations
    labelled = [node for node in doctree.findall(nodes.math_block) if node.get("label")]
    for count, node in enumerate(labelled, 1):
        if "amsmath" in node["classes"]:
            raise ValueError(f"{docname}: {node.astext()[:60]!r} stands outside dollar signs; write $$ ... $$ (label), "
                             "or the environment with a star")
        node["number"] = equations.number(docname, count)
        known[node["label"]] = (docname, node["number"])


def _add_style(app, pagename, templatename, context, doctree):
    if "<mjx-container" in context.get("body", ""):
        root = "../" * pagename.count("/")
        context["metatags"] = context.get("metatags", "") + f"\n<style>{typesetter().style(root)}</style>"
        typesetter().forget()


def _copy_fonts(app, exception):
    if exception is not None or app.builder.format != "html":
        return
    shutil.copytree(package() / FONTS, Path(app.outdir) / IN_SITE, dirs_exist_ok=True)
