"""The directive `{shown-explorer} chapters/04_pipeline_parallelism gantt`: an explorer of a chapter on another page.

It takes the explorer from the chapter's stored outputs, so there is one of it, and what a page shows is what the
chapter shows. Options: `caption`, in place of the chapter's.
"""

import json
import re
from html import escape

from docutils import nodes
from docutils.parsers.rst import Directive, directives

from scalebook.book import cells
from scalebook.book.stills import merge_stills

PICTURES = "_images"


def setup(app):
    """Connect the directive to Sphinx."""
    app.add_directive("shown-explorer", ShownExplorer)


def figure(notebook, name, prefix):
    """Return an explorer's figure as HTML and its still picture (file name to PNG), from a notebook's JSON.

    `notebook` is changed in place; `prefix` is what the page writes before a picture's file name. Raises ValueError
    that names the explorers that there are when `name` is none of them.
    """
    pictures = merge_stills(notebook, prefix)
    found = {}
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            text = cells.html_of(output)
            match = re.search(r'<figure class="explorer" id="explorer-([^"]*)"', text)
            if match:
                found[match.group(1)] = text
    if name not in found:
        raise ValueError(f"name = {name!r} is not allowed: the notebook's explorers are {', '.join(found) or 'none'}")
    return found[name], {file: png for file, png in pictures.items() if file.startswith(f"explorer-{name}-")}


class ShownExplorer(Directive):
    """An explorer of a chapter, with the chapter's own data and controls."""

    required_arguments = 2
    option_spec = {"caption": directives.unchanged_required}  # noqa: RUF012 - as docutils wants it

    def run(self):
        """Return the figure as raw HTML, and leave its picture to the build."""
        page, name = self.arguments
        env = self.state.document.settings.env
        path = env.doc2path(page)
        env.note_dependency(path)
        try:
            with open(path, encoding="utf-8") as file:
                html, pictures = figure(json.load(file), name, "../" * env.docname.count("/") + f"{PICTURES}/")
        except (OSError, ValueError) as error:
            raise self.error(f"shown-explorer: {error}") from error
        if "caption" in self.options:
            html = re.sub(r"<figcaption>.*?</figcaption>",
                          lambda _: f"<figcaption>{escape(self.options['caption'])}</figcaption>", html, flags=re.S)
        env.scalebook_pictures.setdefault(env.docname, {}).update(pictures)
        return [nodes.raw("", html, format="html")]
