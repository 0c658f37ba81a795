"""Two builds of one commit are equal, byte for byte: what a reader gets depends on the sources alone."""

import filecmp
import os

import pytest

from scalebook.book import build


def files_of(site):
    return {str(path.relative_to(site)): path for path in site.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_builds_of_one_commit_are_equal_to_the_byte(tmp_path, monkeypatch):
    sites = []
    for name, seed in (("first", "1"), ("another-one", "2")):  # another folder, and sets in another order
        monkeypatch.setitem(os.environ, "PYTHONHASHSEED", seed)
        assert build.build(build.ROOT, tmp_path / name) == 0
        sites.append(files_of(tmp_path / name / "_build" / "html"))
    first, second = sites
    assert len(first) > 100
    assert first.keys() == second.keys()
    assert [name for name in first if not filecmp.cmp(first[name], second[name], shallow=False)] == []
