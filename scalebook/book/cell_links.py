"""Links to the cells of chapters: the marks that `cells` has set become ids, and a role points to them.

Pages that point to many cells write the role {cell}`5#validate-more`: the chapter's number and the cell's id. Its words
are the chapter and the heading that the cell stands under. The strict build fails when there is no such cell; a chapter
that is not written yet is named without a link.
"""

import re

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxRole

from scalebook.book import cells

REFERENCE = re.compile(r"(\d)#([\w-]+)")


def link(docname, path, name, words):
    """Return a link from a page to the cell `name` of the chapter at `path`."""
    return pending_xref("", nodes.inline("", words), refdoc=docname, refdomain="doc", reftype="myst", refexplicit=True,
                        reftarget=f"chapters/{path.stem}", reftargetid=cells.PREFIX + name)


class CellRole(SphinxRole):
    """{cell}`5#validate-more`: a link to a cell, in the words of its chapter and heading."""

    def run(self):
        """Return the link, or an error that names the cell."""
        match = REFERENCE.fullmatch(self.text)
        try:
            if match is None:
                raise ValueError(f"{self.text!r} is not allowed: a cell is written as 5#validate-more")
            number, name = int(match[1]), match[2]
            if cells.find(number, name) is None:
                return [nodes.Text(f"Chapter {number}")], []
            return [self._link(number, name)], []
        except ValueError as error:
            return [], [self.inliner.reporter.error(str(error), line=self.lineno)]

    def _link(self, number, name):
        path = cells.path_of(number)
        self.env.note_dependency(str(path))
        place = f"Chapter {number}" if number else "Collectives"
        return link(self.env.docname, path, name, f"{place}, {cells.heading_of(number, name)}")


def code_cells(doctree):
    """Return the code cells of a parsed notebook, each with its metadata."""
    return [(cell, cell.get("cell_metadata") or {}) for cell in doctree.findall(nodes.container)
            if cell.get("nb_element") == "cell_code"]


class CellAddresses(SphinxTransform):
    """Turn the marks into ids, once solutions have taken in their cells and before links within a page are resolved."""

    default_priority = 700

    def apply(self):
        """Give every marked cell its id, and tell MyST."""
        for cell, metadata in code_cells(self.document):
            if "address" in metadata:
                self._name(cell, metadata["address"])
        for comment in list(self.document.findall(nodes.comment)):
            if comment.astext().startswith(cells.MARK):
                self._name_text(comment, comment.astext().removeprefix(cells.MARK))

    def _name_text(self, comment, name):
        shown = comment.next_node(descend=False, ascend=True)
        if isinstance(shown, nodes.section | nodes.paragraph):
            self._name(shown, name)
            comment.parent.remove(comment)
        else:  # a table or a directive: not all of them write an id, so a place before it has it
            place = nodes.target()
            self._name(place, name)
            comment.replace_self(place)

    def _name(self, node, name):
        node["ids"].append(name)
        # What MyST keeps of a heading: line, id, words for a link that has none. It looks them up in both places.
        known = (node.line or 0, name, name.removeprefix(cells.PREFIX))
        self.document.myst_slugs[name] = known
        self.env.metadata[self.env.docname].setdefault("myst_slugs", {})[name] = known


def setup(app):
    """Turn the marks into ids, and register the role."""
    app.add_transform(CellAddresses)
    app.add_role("cell", CellRole())
