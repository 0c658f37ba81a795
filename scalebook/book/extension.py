"""The book's Sphinx extension: explorers on the page, and what the other modules of this folder add to the build.

What it does, in the order of a build: before a notebook is parsed, each explorer's still picture moves into its
figure (`stills`) and each cell is marked with its address (`cells`); once parsed, listings get a line that names their
function; as a page is written, its scripts are added if it has an explorer; at the end, the scripts and the pictures
are written into the site. Mathematics is the matter of `mathematics`, style and icons of `look`. Nothing minified is in
the repository, and the site asks no other host for anything.
"""

import json
from pathlib import Path

from docutils import nodes

from scalebook.book import (
    cell_links,
    cells,
    citations,  # noqa: F401 - registers its style
    claims_page,
    exercise_list,
    glossary,
    lean,
    library_page,
    listings,
    long_code,
    look,
    mathematics,
    notation,
    performance,
    pictures,
    plain_code,
    shown,
    tables,
    take_along,
)
from scalebook.book.stills import merge_stills
from scalebook.explorer import assets

EXPLORER = 'class="explorer"'
PICTURES = "_images"
OPTIONS = "DOCUMENTATION_OPTIONS"


def setup(app):
    """Connect the extension to Sphinx."""
    for module in (notation, shown, cell_links, glossary, exercise_list, claims_page, take_along, library_page,
                   long_code, look, mathematics, performance, pictures, tables, plain_code):
        module.setup(app)
    app.connect("builder-inited", _remember_pictures)
    app.connect("env-purge-doc", _forget_pictures)
    app.connect("source-read", _read_notebook)
    app.connect("doctree-read", _name_listings)
    app.connect("doctree-resolved", _name_sections)
    app.connect("html-page-context", _add_scripts, priority=900)  # after the extensions whose scripts it looks at
    app.connect("build-finished", _write_assets, priority=900)  # after the theme, which writes a sheet then, too
    return {"version": "1", "env_version": 1, "parallel_read_safe": False, "parallel_write_safe": True}


def _remember_pictures(app):
    if not hasattr(app.env, "scalebook_pictures"):
        # Page -> {file name: PNG}. Kept between builds, as Sphinx keeps the parsed page.
        app.env.scalebook_pictures = {}


def _forget_pictures(app, env, docname):
    env.scalebook_pictures.pop(docname, None)


def _read_notebook(app, docname, source):
    if not str(app.env.doc2path(docname)).endswith(".ipynb"):
        return
    notebook = json.loads(source[0])
    try:
        stills = merge_stills(notebook, "../" * docname.count("/") + f"{PICTURES}/")
    except ValueError as error:
        raise ValueError(f"{docname}: {error}") from error
    cells.mark(notebook)
    app.env.scalebook_pictures[docname] = stills
    source[0] = json.dumps(notebook)


def _name_listings(app, doctree):
    """Put a line under each listing that says which functions of the library it shows."""
    for cell, metadata in cell_links.code_cells(doctree):
        listing = metadata.get("listing")
        if listing:
            note = nodes.paragraph(classes=["listing-note"])
            note += nodes.Text("From the library: ")
            for index, (module, name) in enumerate(listings.objects(listing)):
                note += [nodes.Text(", " if index else ""), nodes.literal(text=f"{module}.{name}")]
            # After the code, before what it prints.
            cell.insert(1, note)


def _name_sections(app, doctree, docname):
    """Give the inner sections of exercises and solutions ids of their own: all bear the same two."""
    for section in doctree.findall(nodes.section):
        if section["ids"] in (["exercise-content"], ["solution-content"]):
            section["ids"] = [f"{section.parent['ids'][0]}-content"]


def _add_scripts(app, pagename, templatename, context, doctree):
    _drop_doubled_scripts(context)
    if pagename != "search":  # the search page's own script asks at once for what the others define
        _defer_scripts(context)
    if "body" in context:
        # The list of references calls itself a list and its entries something that a list may not hold.
        context["body"] = context["body"].replace(' role="list" class="citation-list"', ' class="citation-list"')
        context["body"] = context["body"].replace(' role="doc-biblioentry"', "")
    if EXPLORER in context.get("body", ""):
        app.add_css_file("explorer/explorer.css")
        app.add_js_file("explorer/page.js", loading_method="async")


def _drop_doubled_scripts(context):
    """Keep each inline script once: Sphinx lists twice what an extension adds after the builder is made."""
    seen, scripts = set(), []
    for script in context["script_files"]:
        body = getattr(script, "attributes", {}).get("body")
        if body is None or body not in seen:
            scripts.append(script)
        seen.add(body)
    context["script_files"][:] = scripts


def _defer_scripts(context):
    """Let no script hold up the page: each runs, in its order, when the page is whole."""
    scripts = context["script_files"]
    for place, script in enumerate(scripts):
        attributes = getattr(script, "attributes", {})
        body = str(attributes.get("body", ""))
        if str(getattr(script, "filename", None) or "").startswith("_static/") and "async" not in attributes:
            later = {"defer": "defer"}
        elif body.startswith(f"{OPTIONS}."):  # completes what a script in a file, which comes later, has begun
            later = {"type": "module"}
        else:
            continue
        # A script of its own: the pages share the one that is there.
        scripts[place] = type(script)(script.filename, priority=script.priority, **attributes | later)


def _write_assets(app, exception):
    if exception is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for stills in app.env.scalebook_pictures.values():
        for name, png in stills.items():
            (out / PICTURES).mkdir(exist_ok=True)
            (out / PICTURES / name).write_bytes(png)
    _write_explorer(out / "_static" / "explorer")
    lean.trim(out, Path(app.doctreedir) / "style_sheets")


def _write_explorer(folder):
    folder.mkdir(exist_ok=True)
    bundle = folder / "vega.js"
    if not bundle.exists():  # takes seconds, and changes only with the pinned packages (which start a new build)
        bundle.write_text(assets.page_bundle(), encoding="utf-8")
    (folder / "page.js").write_text(assets.page_script(), encoding="utf-8")
    (folder / "explorer.css").write_text(assets.stylesheet(), encoding="utf-8")
