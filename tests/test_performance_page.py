"""Every figure that is measured can be stored, with its date and machine, and the book's page shows what is stored."""

import datetime
import json
import re

import nbformat
import pytest
from sphinx.application import Sphinx

from scalebook.book import performance
from scalebook.book.build import ROOT
from scalebook.book.notebooks import chapters
from tests.bench import explorers, rows
from tests.bench.rows import Row

PAGE = (ROOT / "chapters" / "performance.md").read_text(encoding="utf-8")
MEASURED = {subject for path in (ROOT / "tests" / "bench").glob("*.py")
            for subject in re.findall(r"\bRow\(\s*\"(\w+)\"", path.read_text(encoding="utf-8"))}
SPEED = Row("moe", "a layer", 0.0123456, "another's", 0.02, "s", 1.1)


def test_the_page_shows_every_subject_that_is_measured():
    assert len(MEASURED) >= 9
    assert set(re.findall(r"\{performance\} (\w+)", PAGE)) == MEASURED


@pytest.mark.parametrize(("ours", "other", "target", "missed"), [
    (1, 2, 0.5, False), (1.01, 2, 0.5, True), (9, 1, 0, False), (float("nan"), 1, 1, True), (0, 1, 1, False)])
def test_a_figure_misses_its_target_unless_the_ratio_is_within_it(ours, other, target, missed):
    row = Row("moe", "a layer", ours, "another's", other, "s", target)
    assert row.missed is missed
    assert row.line().endswith("  MISSED") is missed


def test_columns_of_the_table_stand_below_their_headings():
    head, line = rows.table([SPEED])
    for title in ("what", "beside"):
        at = head.index(title)
        assert line[at - 1] == " "
        assert line[at:].startswith({"what": "a layer", "beside": "another's"}[title])
    assert head.index("ratio") + len("ratio") == line.index("0.617") + len("0.617")


def test_the_table_keeps_its_columns_apart_however_long_the_words_are():
    long = Row("moe", "w" * 80, 1, "b" * 60, 2, "s")
    assert f"{'w' * 80} " in "\n".join(rows.table([SPEED, long]))
    assert f"{'b' * 60} " in "\n".join(rows.table([SPEED, long]))


def test_what_is_stored_has_its_date_and_machine_and_leaves_other_subjects_as_they_are(tmp_path):
    path = tmp_path / "performance.json"
    old = {"subject": "book", "what": "building", "ours": 1, "beside": "the limit", "other": 30, "unit": "s",
           "target": 1, "date": "2020-01-01", "machine": "an old one"}
    path.write_text(json.dumps({"rows": [old, old | {"subject": "moe", "what": "gone"}]}), encoding="utf-8")
    rows.store([SPEED], path)
    stored = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert stored[0] == old
    (new,) = stored[1:]
    assert (new["subject"], new["what"], new["ours"], new["other"]) == ("moe", "a layer", 0.01235, 0.02)
    assert datetime.date.fromisoformat(new["date"]) >= datetime.date(2026, 1, 1)
    assert "cores" in new["machine"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """Build a page with the directives, as HTML, from figures that were stored."""
    stored = tmp_path / "performance.json"
    monkeypatch.setattr(performance, "STORED", stored)

    def build(text, measured):
        rows.store(measured, stored)
        source = tmp_path / "source"
        source.mkdir()
        (source / "index.md").write_text(text, encoding="utf-8")
        warnings = (tmp_path / "warnings").open("w+", encoding="utf-8")
        with warnings:
            app = Sphinx(source, None, tmp_path / "out", tmp_path / "trees", "html", status=None, warning=warnings,
                         confoverrides={"extensions": ["myst_parser", "scalebook.book.performance"]})
            app.build()
            warnings.seek(0)
            return (tmp_path / "out" / "index.html").read_text(encoding="utf-8"), warnings.read()

    return build


def test_the_page_is_built_from_what_is_stored(shown):
    measured = [Row(subject, f"{subject} & all", 1234.5, "a <limit>", 5000, "ms", 0.5) for subject in sorted(MEASURED)]
    html, warnings = shown(PAGE, measured)
    assert not warnings
    assert html.count("<table") == len(MEASURED)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))
    for subject in MEASURED:
        assert f"{subject} &amp; all 1,230 ms a &lt;limit&gt; 5,000 ms 0.247 0.5" in text
    assert text.count(f"Measured on {datetime.datetime.now(tz=datetime.UTC).date()}") == len(MEASURED)


def test_a_subject_that_was_not_measured_is_an_error_that_says_what_was(shown):
    _, warnings = shown("# Page\n\n```{performance} sound\n```\n", [SPEED])
    assert "performance: subject 'sound' is not allowed; measured are moe" in warnings


def test_explorers_that_are_compared_with_bars_are_in_the_book():
    html = "".join(output.data.get("text/html", "") for path in chapters()
                   for cell in nbformat.read(path, as_version=4).cells
                   for output in cell.get("outputs", []) if "data" in output)
    assert set(explorers.BARS) <= set(re.findall(r'<figure class="explorer" id="explorer-([^"]+)"', html))
