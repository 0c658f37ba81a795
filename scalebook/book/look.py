"""The book's look: one style sheet, made of the files in `styles`, the icons, and the colours of the ideas.

The colours come from `scalebook.colours`, from where charts and drawings take them, too: a page's text can name an idea
by `var(--idea-forward)` and has the colour of the pictures.
"""

from pathlib import Path

from scalebook import colours
from scalebook.book import icons

STYLES = Path(__file__).with_name("styles")
TEMPLATES = Path(__file__).with_name("templates")
SHEET = "book.css"
PRINT = Path(__file__).with_name("print.css")


def setup(app):
    """Give the site its style sheet and its templates."""
    app.connect("config-inited", _add_files)
    app.connect("builder-inited", _write_sheet)
    app.connect("build-finished", _light_without_scripts)
    app.add_css_file(SHEET, priority=900)  # after the sheets that it changes
    app.add_css_file(PRINT.name, priority=901, media="print")


def stylesheet():
    """Return the whole style sheet of the book."""
    parts = sorted(STYLES.glob("*.css"))
    return "\n".join([variables(), *(part.read_text(encoding="utf-8") for part in parts), icons.stylesheet()])


def variables():
    """Return the colours of the ideas as CSS variables.

    >>> "--idea-forward: #0072b2;" in variables()
    True
    """
    ideas = {name: value for name, value in vars(colours).items() if name.isupper() and isinstance(value, str)}
    lines = [f"  --idea-{name.lower().replace('_', '-')}: {value};" for name, value in ideas.items()]
    return "\n".join([":root {", *lines, "}", ""])


def _add_files(app, config):
    config.templates_path.insert(0, str(TEMPLATES))
    config.html_static_path.append(str(PRINT))


def _write_sheet(app):
    if app.builder.format == "html":
        static = Path(app.outdir) / "_static"
        static.mkdir(parents=True, exist_ok=True)
        (static / SHEET).write_text(stylesheet(), encoding="utf-8")


def _light_without_scripts(app, exception):
    """Let a page be light until a script finds out what the reader wants: for "auto" the theme has no colours."""
    if exception is None and app.builder.format == "html":
        for page in Path(app.outdir).rglob("*.html"):
            text = page.read_text(encoding="utf-8")
            light = text.replace(' data-theme="auto">', ' data-theme="light">', 1)
            if light != text:
                page.write_text(light, encoding="utf-8")
