"""What the project says of itself, in several files, agrees."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md")


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_and_date_are_one():
    version = tomllib.loads(text("pyproject.toml"))["project"]["version"]
    citation = yaml.safe_load(text("CITATION.cff"))
    newest = re.search(r"^## (\S+) \((\d{4}-\d{2}-\d{2})\)$", text("CHANGELOG.md"), re.M)
    assert (version, citation["version"]) == (newest[1], newest[1])
    assert str(citation["date-released"]) == newest[2]


def test_the_citation_has_what_the_format_asks_for():
    citation = yaml.safe_load(text("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["title"] == yaml.safe_load(text("_config.yml"))["title"]
    assert citation["license"] == tomllib.loads(text("pyproject.toml"))["project"]["license"]


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_that_a_page_names_exists(page):
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.M))
    named = set(re.findall(r"(?:`|^    )make ([a-z-]+)", text(page), re.M))
    assert named
    assert named <= targets, named - targets


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page):
    """Paths in backticks, with a slash or a known ending; `test_x_*` stands for at least one file."""
    named = set(re.findall(r"`((?:chapters|figures|scalebook|tests)/[\w/.*-]*)`", text(page)))
    assert named
    for path in named:
        found = list(ROOT.glob(f"{path}*" if not path.endswith(("*", "/")) else path)) or (ROOT / path).exists()
        assert found, path
