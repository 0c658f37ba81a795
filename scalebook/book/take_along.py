"""What a reader can take along from the site: single-file notebooks, and the links to them and to the repository.

A part of the book's Sphinx extension. Every chapter that is a notebook gets a line below its title that leads to its
single-file form and, where the repository is known, to Colab.
"""

from html import escape
from pathlib import Path

from docutils import nodes
from pybtex.database.input.bibtex import Parser

from scalebook.book import colab, repository
from scalebook.book.citations import BookStyle
from scalebook.explorer import assets

FOLDER = "colab"


def setup(app):
    """Connect this part to Sphinx."""
    app.connect("config-inited", _choose_repository)
    app.connect("doctree-resolved", _add_links)
    app.connect("build-finished", _write_notebooks, priority=900)  # after the explorers' script has been written


def _choose_repository(app, config):
    chosen = repository.chosen(app.confdir)
    config.html_theme_options = {**config.html_theme_options, **repository.theme_options(chosen)}
    if chosen:
        config.html_context = {**config.html_context, "github_user": chosen.owner, "github_repo": chosen.name,
                               "github_version": chosen.branch}


def _is_chapter(env, docname):
    path = Path(env.doc2path(docname))
    return path.suffix == ".ipynb" and path.parent == Path(env.srcdir) / "chapters"


def _add_links(app, doctree, docname):
    """Put the links of a chapter below its title."""
    if app.builder.format != "html" or not _is_chapter(app.env, docname):
        return
    section = next(iter(doctree.findall(nodes.section)), None)
    if section is None:
        return
    stem = docname.rpartition("/")[2]
    up = "../" * docname.count("/")
    links = [(f"{up}{FOLDER}/{stem}.ipynb", " download", "Download for Colab or Jupyter (one file)")]
    chosen = repository.chosen(app.confdir)
    if chosen:
        links.insert(0, (chosen.open_in_colab(stem), "", "Open in Colab"))
    written = " · ".join(f'<a href="{escape(address)}"{more}>{words}</a>' for address, more, words in links)
    section.insert(1, nodes.raw("", f'<p class="take-along">{written}</p>', format="html"))


def _write_notebooks(app, exception):
    """Write the single-file notebooks into the site."""
    chapters = [Path(app.env.doc2path(name)) for name in sorted(app.env.found_docs) if _is_chapter(app.env, name)]
    if exception is not None or app.builder.format != "html" or not chapters:
        return
    book = colab.Book(Path(app.srcdir), app.config.html_title, _vega(app), _works(app), repository.chosen(app.confdir))
    colab.write_all(book, chapters, Path(app.outdir) / FOLDER)


def _vega(app):
    """The script that draws explorers for a kernel: kept beside the parsed pages, since making it takes seconds."""
    kept = Path(app.doctreedir) / "vega.js"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(assets.vega_bundle(), encoding="utf-8")
    return kept.read_text(encoding="utf-8")


def _works(app):
    """A function from a work's key to its label and address."""
    files = [str(Path(app.confdir) / name) for name in app.config.bibtex_bibfiles]
    style = BookStyle()
    entries = style.sort(Parser().parse_files(files).entries.values())
    labels = dict(zip([entry.key for entry in entries], style.format_labels(entries), strict=True))
    fields = {entry.key: entry.fields for entry in entries}

    def cite(key):
        if key not in labels:
            raise ValueError(f"the work {key!r} is not in the list of references")
        return labels[key], _address(fields[key])

    return cite


def _address(fields):
    """Where a work can be read, or None where its entry does not say."""
    if "eprint" in fields:
        return f"https://arxiv.org/abs/{fields['eprint']}"
    return f"https://doi.org/{fields['doi']}" if "doi" in fields else fields.get("url")
