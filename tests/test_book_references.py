"""The list of references: every entry complete and used, and every paper that the book names in it."""

import re

import pytest
from pybtex.database import parse_file

from scalebook.book import build, notebooks

ENTRIES = parse_file(str(build.ROOT / "references.bib")).entries
PAGES = [build.ROOT / "index.md", *sorted((build.ROOT / "chapters").glob("*.md")), *notebooks.chapters()]
TEXT = {path.name: path.read_text(encoding="utf-8") for path in PAGES}
ARXIV = re.compile(r"(?:arXiv:|arxiv\.org/abs/)(\d{4}\.\d{4,5})")
EPRINTS = {entry.fields["eprint"]: key for key, entry in ENTRIES.items() if "eprint" in entry.fields}


def sources():
    """What the library says of where its functions, formulas and numbers are from: its files, by name."""
    folder = build.ROOT / "scalebook"
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8")
            for suffix in ("py", "toml") for path in sorted(folder.rglob(f"*.{suffix}"))}


def cited():
    return {key.strip() for text in TEXT.values() for keys in re.findall(r"\{cite\}`([^`]+)`", text)
            for key in keys.split(",")}


@pytest.mark.parametrize("key", ENTRIES)
def test_an_entry_is_complete(key):
    entry = ENTRIES[key]
    assert entry.persons["author"]
    assert entry.fields["title"].strip(" {}")
    assert re.fullmatch(r"(19|20)\d\d", entry.fields["year"])
    assert {"booktitle", "journal", "institution", "eprint"} & set(entry.fields), "neither venue nor arXiv"
    assert (entry.type == "article") == ("journal" in entry.fields), "an article has a journal, and nothing else has"
    assert {"url", "doi", "eprint"} & set(entry.fields), "no address"
    assert ("eprint" in entry.fields) == (entry.fields.get("archiveprefix") == "arXiv")
    assert re.fullmatch(r"[a-z]+\d{4}[a-z0-9]+", key)
    assert entry.fields["year"] in key


def test_no_work_stands_twice():
    assert len(EPRINTS) == sum("eprint" in entry.fields for entry in ENTRIES.values())
    titles = [re.sub(r"\W", "", entry.fields["title"]).lower() for entry in ENTRIES.values()]
    assert len(titles) == len(set(titles))


def test_every_arxiv_number_of_the_book_or_its_library_is_in_the_list():
    missing = {(name, found) for name, text in {**TEXT, **sources()}.items()
               for found in ARXIV.findall(text) if found not in EPRINTS}
    assert missing == set()
    assert sum(bool(ARXIV.search(text)) for text in sources().values()) > 20


def test_every_entry_is_cited_linked_or_the_source_of_a_number():
    everything = "\n".join([*TEXT.values(), *sources().values()])
    numbers, known = set(ARXIV.findall(everything)), cited()
    addresses = {key: [entry.fields[field] for field in ("doi", "url") if field in entry.fields]
                 for key, entry in ENTRIES.items()}
    unused = [key for key, entry in ENTRIES.items() if key not in known and entry.fields.get("eprint") not in numbers
              and not any(address in everything for address in addresses[key])]
    assert unused == []


def test_every_key_that_is_cited_exists():
    assert cited() <= set(ENTRIES)
