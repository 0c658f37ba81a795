"""A chapter's first use of a term leads to the glossary, in running text alone."""

import re

import pytest
from docutils import nodes
from docutils.utils import new_document
from sphinx.addnodes import pending_xref

from scalebook.book import build, cells, glossary, notebooks

PAGE = (build.ROOT / "chapters" / "glossary.md").read_text(encoding="utf-8")
KNOWN = glossary.terms(PAGE)
TERMS = {"all-reduce": "all-reduce", "reduce-scatter": "reduce-scatter", "micro-batch": "micro-batch",
         "microbatch": "micro-batch", "ZeRO": "ZeRO", "KV cache": "KV cache", "top-K": "top-K", "entropy": "entropy"}


def linked(*children):
    page = new_document("page")
    paragraph = nodes.paragraph("", "", *children)
    page += paragraph
    glossary.link(page, TERMS)
    assert paragraph.astext() == "".join(child.astext() for child in children)
    return [reference.astext() for reference in page.findall(pending_xref)]


@pytest.mark.parametrize(("words", "found"), [
    ("An all-reduce, and another all-reduce.", ["all-reduce"]),
    ("All-reduces of two kinds", ["All-reduces"]),
    ("all reduce\nand reduce\nscatter", ["all reduce", "reduce\nscatter"]),
    ("A reduce-scatter is not a scatter.", ["reduce-scatter"]),
    ("A microbatch and two micro-batches", ["microbatch"]),
    ("From zero on, ZeRO shards; zero stays.", ["ZeRO"]),
    ("KV caches, but no kv cache", ["KV caches"]),
    ("Top-K of all", ["Top-K"]),
    ("entropies", ["entropies"]),
    ("pre-all-reduce, all-reduce-like, all-reduced", []),
])
def test_the_first_use_is_found_in_any_form(words, found):
    assert linked(nodes.Text(words)) == found


@pytest.mark.parametrize("kind", [nodes.literal, nodes.math, nodes.reference, nodes.title, nodes.caption])
def test_code_mathematics_links_headings_and_captions_stay_as_they_are(kind):
    inside = kind("", "all-reduce")
    assert linked(inside, nodes.Text(" and all-reduce")) == ["all-reduce"]
    assert not list(inside.findall(pending_xref))


def test_emphasis_is_running_text():
    assert linked(nodes.emphasis("", "all-reduce")) == ["all-reduce"]


def test_every_definition_is_a_sentence_and_names_a_chapter():
    entries = re.findall(r"^((?:\S.*\n)+)((?:  \S.*\n)+)", PAGE[PAGE.index("{glossary}") + 11:], re.M)
    assert len(entries) > 80
    assert sum(len(names.splitlines()) for names, _ in entries) == len(KNOWN)
    for names, words in entries:
        assert re.search(r"[^ ]\. \([0-6](, [0-6])*\)\n$", words), names
        assert len(words.split()) < 50, names


def test_ordinary_words_are_terms_only_where_their_entry_says():
    assert "stage" in glossary.terms(PAGE, 4)
    assert "stage" in glossary.terms(PAGE, 5)
    assert "stage" not in glossary.terms(PAGE, 2)
    assert "all-reduce" in glossary.terms(PAGE, 2)
    assert set(KNOWN) >= glossary.ORDINARY
    assert all(glossary.homes(PAGE, name) for name in glossary.ORDINARY)


def test_terms_stand_in_order():
    firsts = [name for name, first in KNOWN.items() if name == first]
    assert firsts == sorted(firsts, key=str.lower)


def test_every_term_is_used_in_a_chapter_other_than_as_a_heading():
    paths = notebooks.chapters()
    prose = "\n".join(cells.text_of(cell) for path in paths for cell in cells.read(path)
                      if cell["cell_type"] == "markdown")
    used = {glossary.term_of(words, KNOWN) for words in glossary.pattern(KNOWN).findall(prose)}
    unused = {first for first in KNOWN.values() if not any(KNOWN[name] == first for name in used)}
    later = {"MFU", "HFU", "context parallelism"}  # the last chapter's
    assert unused <= later


def test_a_term_that_stands_twice_is_refused():
    with pytest.raises(ValueError, match="'rank' stands twice"):
        glossary.terms("```{glossary}\nrank\n  One.\n\nrank\n  Two.\n```")
