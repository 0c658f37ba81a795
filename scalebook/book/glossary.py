"""Link each chapter's first use of a term to the glossary.

The terms are those of chapters/glossary.md; a definition may have several, one a line. In each notebook the first use
of any term of a definition becomes a link, in running text only: not in a heading, code, mathematics, a link or a
caption. A plural and a hyphen in place of a space make no difference, nor does the case of letters, unless the term has
capitals: "zero" is not ZeRO. The longest term wins, so that "reduce-scatter" is never "scatter". Some terms are
ordinary words as well; these are linked only in the chapters that their entry names.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref

GLOSSARY = "chapters/glossary"
# Text below any of these stays as it is.
LEFT_ALONE = (nodes.title, nodes.caption, nodes.thead, nodes.rubric, nodes.literal, nodes.literal_block, nodes.math,
              nodes.math_block, nodes.reference, pending_xref, nodes.image, nodes.raw, nodes.comment, nodes.target,
              nodes.footnote_reference, nodes.citation_reference)


ORDINARY = {"bucket", "chunk", "collapse", "combine", "dispatch", "flush", "gate", "resident", "ring", "stage"}


def terms(text, number=None):
    """Return the terms of a page's glossary: each to the first term of its definition.

    With a chapter's `number`, those that are ordinary words in that chapter are left out.

    >>> terms("```{glossary}\\nmicro-batch\\nmicrobatch\\n  A part of the batch.\\n```")
    {'micro-batch': 'micro-batch', 'microbatch': 'micro-batch'}
    """
    found, first = {}, None
    block = re.search(r"^```\{glossary\}\n(.*?)^```", text, re.M | re.S)
    for line in block[1].splitlines() if block else ():
        if line.startswith(" "):
            first = None
        elif line:
            first = first or line
            if line in found:
                raise ValueError(f"the term {line!r} stands twice in the glossary")
            found[line] = first
    elsewhere = set() if number is None else {name for name in ORDINARY & set(found) if number not in homes(text, name)}
    return {name: first for name, first in found.items() if first not in elsewhere}


def homes(text, name):
    """Return the chapters that the entry of a term names at its end.

    >>> homes("```{glossary}\\nstage\\n  The layers that a rank holds. (4, 5)\\n```", "stage")
    {4, 5}
    """
    entry = re.search(rf"^{re.escape(name)}\n(?:\S.*\n)*(?:  .*\n)*?  .*\(([\d, ]+)\)$", text, re.M)
    return {int(number) for number in entry[1].split(",")}


def pattern(names):
    """Return a regular expression that finds any of the terms, the longest first.

    >>> pattern(["bubble", "all-reduce", "ZeRO"]).findall("All-reduces leave zero bubbles; a bubbler would.")
    ['All-reduces', 'bubbles']
    """
    words = sorted(names, key=lambda name: (-len(name), name))
    return re.compile(r"(?<![\w-])(?:" + "|".join(_tolerant(word) for word in words) + r")(?![\w]|-\w)")


def _tolerant(word):
    stem, ending = (word[:-1], "(?:y|ies)") if re.search(r"[^aeiou]y$", word) else (word, "(?:s|es)?")
    if word.endswith("s"):
        ending = "(?:es)?"
    found = re.sub(r"\\ |\\-", lambda _: r"[-\s]", re.escape(stem)) + ending
    if word == word.lower():
        return f"(?i:{found})"
    return f"(?i:{found[0]}){found[1:]}" if word[0].islower() else found


def term_of(words, known):
    """Return the term that some words of a text are, as the glossary has it.

    >>> term_of("All reduces", {"all-reduce": "all-reduce"})
    'all-reduce'
    """
    for name in sorted(known, key=len, reverse=True):
        if re.fullmatch(_tolerant(name), words):
            return name
    raise ValueError(f"words = {words!r} is not allowed: it is no term of the glossary")


def link(doctree, known, docname=""):
    """Make the first use of each definition's terms in a page a link; return the terms linked, in order."""
    search, done, linked = pattern(known), set(), []
    for text in list(doctree.findall(nodes.Text)):
        if _may_change(text):
            parts = _parts(text.astext(), search, known, done, linked, docname)
            if any(isinstance(part, pending_xref) for part in parts):
                text.parent.replace(text, parts)
    return linked


def _may_change(text):
    node = text.parent
    while node is not None:
        if isinstance(node, LEFT_ALONE):
            return False
        node = node.parent
    return True


def _parts(words, search, known, done, linked, docname):
    parts, start = [], 0
    for match in search.finditer(words):
        name = term_of(match.group(), known)
        if known[name] in done:
            continue
        done.add(known[name])
        linked.append(name)
        parts += [nodes.Text(words[start:match.start()]), _reference(match.group(), name, docname)]
        start = match.end()
    return [part for part in (*parts, nodes.Text(words[start:])) if part.astext()]


def _reference(words, name, docname):
    inner = nodes.inline("", words, classes=["xref", "std", "std-term"])
    return pending_xref("", inner, refdomain="std", reftype="term", reftarget=name, refexplicit=True, refwarn=True,
                        refdoc=docname)


def _link_chapter(app, doctree):
    docname = app.env.docname
    path = Path(app.env.doc2path(GLOSSARY))
    if path.exists() and str(app.env.doc2path(docname)).endswith(".ipynb"):
        app.env.note_dependency(str(path))
        number = int(re.match(r"(?:.*/)?(\d*)", docname)[1] or -1)
        link(doctree, terms(path.read_text(encoding="utf-8"), number), docname)


def setup(app):
    """Link terms once a chapter is parsed."""
    app.connect("doctree-read", _link_chapter)
