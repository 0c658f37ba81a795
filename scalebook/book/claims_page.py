"""The directive `{claims}`: `scalebook.book.claims` as sections, tables and folded lists."""

from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from scalebook.book import cell_links, claims
from scalebook.book.notation import linked, table, words

LONGEST = 160  # of an assert, in characters; what is longer is cut, and the link leads to the whole


class Claims(SphinxDirective):
    """Counts, oracles, and for each chapter its asserts, formulas, published tables and tests."""

    def run(self):
        """Return the sections."""
        chapters, files = claims.all_chapters(), claims.proving_files()
        for path in (*(chapter.path for chapter in chapters), *(claims.TESTS.parent / file.path for file in files),
                     Path(claims.__file__)):
            self.env.note_dependency(str(path))
        found = [_section("In numbers", "claims-in-numbers", _counts(chapters, files)),
                 _section("Oracles that are not ours", "claims-oracles", _oracles())]
        found += [_section(_name(chapter), f"claims-{chapter.number}", *self._chapter(chapter, files))
                  for chapter in chapters]
        return [*found, _section("The book itself", "claims-of-the-book", _tests(files, None))]

    def _chapter(self, chapter, files):
        yield _folded(f"{chapter.asserts} asserts in {len(chapter.cells)} cells",
                      _list(self._cell(chapter, cell) for cell in chapter.cells))
        yield _folded(f"{len(chapter.formulas)} formulas with their sources", _list(
            [nodes.paragraph("", "", nodes.literal(text=formula.name), nodes.Text(": "), *linked(formula.source))]
            for formula in chapter.formulas))
        if chapter.tables:
            yield _folded(f"{len(chapter.tables)} tables of numbers that others published", _list(
                [nodes.paragraph("", "", nodes.literal(text=name), nodes.Text(f", {rows} rows: "), *linked(source))]
                for name, rows, source in chapter.tables))
        yield _tests(files, chapter.number)

    def _cell(self, chapter, cell):
        link = cell_links.link(self.env.docname, chapter.path, cell.name, f"{cell.heading}, {cell.name}")
        measured = [nodes.Text(" (measured: only these hold at every run)")] if cell.measured else []
        return [nodes.paragraph("", "", link, *measured),
                _list([nodes.paragraph("", "", nodes.literal(text=_cut(condition)))] for condition in cell.asserts)]


def _name(chapter):
    return chapter.title if chapter.number == 0 else f"{chapter.number}. {chapter.title}"


def _cut(text):
    return text if len(text) <= LONGEST else text[:LONGEST - 2].rstrip() + " …"


def _section(title, identity, *content):
    return nodes.section("", nodes.title("", title), *content, ids=[identity])


def _folded(title, content):
    return nodes.admonition("", nodes.title("", title), content, classes=["dropdown"])


def _list(items):
    return nodes.bullet_list("", *[nodes.list_item("", *item) for item in items])


def _tests(files, number):
    proving = [file for file in files if file.chapter == number]
    claimed = sum(len(file.claims) for file in proving)
    return _folded(f"{claimed} claims that tests prove, in {len(proving)} files", _list(
        [nodes.paragraph("", "", nodes.literal(text=file.path), nodes.Text(f": {file.about}")),
         _list([nodes.paragraph("", claim)] for claim in file.claims)] for file in proving))


def _counts(chapters, files):
    rows = []
    for chapter in chapters:
        tests = sum(len(file.claims) for file in files if file.chapter == chapter.number)
        rows.append((_name(chapter), len(chapter.cells), chapter.asserts, chapter.explorers, chapter.checked,
                     len(chapter.formulas), sum(rows for _, rows, _ in chapter.tables), tests))
    rest = sum(len(file.claims) for file in files if file.chapter is None)
    rows.append(("The book itself", 0, 0, 0, 0, 0, 0, rest))
    rows.append(("All", *(sum(column) for column in list(zip(*rows, strict=True))[1:])))
    return table(("Chapter", "Cells that assert", "Asserts", "Explorers", "Checked exercises", "Formulas",
                  "Published rows", "Tests"), [words(*row) for row in rows])


def _oracles():
    rows = []
    for name, says, files, chapters in claims.oracles():
        rows.append(words(name, says, ", ".join(map(str, chapters)) or "–", len(files)))
    return table(("Oracle", "What it tells", "Asked in chapters", "Asked in test files"), rows)


def setup(app):
    """Register the directive."""
    app.add_directive("claims", Claims)
