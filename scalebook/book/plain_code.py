"""Code whose words have no colour of their own stands without elements of its own: pages have half as many.

Pygments wraps every word of a listing, names and brackets too, which both of the book's styles draw like the text
around them. A browser pays for each of these elements when it opens a page, and again each time a slider moves.
"""

from functools import cache

from pygments.formatters import HtmlFormatter
from pygments.styles import get_style_by_name
from pygments.token import Text
from sphinx.highlighting import PygmentsBridge

STYLES = ("pygments_light_style", "pygments_dark_style")  # options of the theme


def setup(app):
    """Let Sphinx write listings by `formatter`, for the styles that the theme is given."""
    app.connect("config-inited", _configure)


def _configure(app, config):
    names = [config.html_theme_options.get(option) for option in STYLES]
    if all(names):
        PygmentsBridge.html_formatter = formatter(*names)


@cache
def formatter(*styles):
    """Return the class of an `HtmlFormatter` that wraps only what one of the styles draws otherwise than plain text.

    >>> from pygments import highlight
    >>> from pygments.lexers import PythonLexer
    >>> highlight("f(x)", PythonLexer(), formatter("a11y-high-contrast-light")(nowrap=True))
    'f(x)\\n'
    """
    drawn = [get_style_by_name(name) for name in styles]

    @cache
    def plain(kind):
        return all(style.style_for_token(kind) == style.style_for_token(Text) for style in drawn)

    class PlainFormatter(HtmlFormatter):
        def format_unencoded(self, tokensource, outfile):
            super().format_unencoded(((Text if plain(kind) else kind, text) for kind, text in tokensource), outfile)

    return PlainFormatter
