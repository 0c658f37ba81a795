"""What is pinned is what is needed, each with its reason, a licence that fits, and for the build its hashes."""

import doctest
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker

from scalebook.book import dependencies, lock

ROOT = dependencies.ROOT
TABLE = dependencies.table()
BUILD, ALL = (dependencies.pinned(ROOT / name) for name in ("requirements-book.txt", "requirements.txt"))
ASKED = {"build": set(TABLE["asked_for"]["build"]),
         "all": {*TABLE["asked_for"]["build"], *TABLE["asked_for"]["notebooks"]}}
DATA = dependencies.pinned(ROOT / "requirements-data.txt")  # installed without what they need


# `make test-latest` has other versions, and so other packages, on purpose.
as_pinned = pytest.mark.skipif(Path(sys.prefix).name == ".venv-latest", reason="here the newest versions are installed")


def elsewhere(path):
    """The packages that a requirements file asks for on another system than this."""
    pins = lock.requirements(path.read_text(encoding="utf-8").replace("-r requirements-book.txt\n", ""))
    return {dependencies.canonicalize_name(pin.partition("==")[0]) for pin, marker in pins
            if marker and not Marker(marker).evaluate()}


@as_pinned
@pytest.mark.parametrize(("what", "pins"), [("build", BUILD), ("all", ALL)])
def test_what_is_pinned_is_what_the_packages_asked_for_need_and_nothing_else(what, pins):
    needed = dependencies.needed(ASKED[what])
    assert needed - set(pins) == set(), "needed and not pinned"
    assert set(pins) - needed == elsewhere(ROOT / "requirements-book.txt"), "pinned and not needed"


def test_each_package_that_is_asked_for_has_its_reason_in_one_line():
    for part in TABLE["asked_for"].values():
        for name, reason in part.items():
            assert 10 < len(reason) <= 120, name
            assert "\n" not in reason
            assert not reason.endswith(".")


def test_contributing_has_every_reason_as_the_command_writes_it():
    page = (ROOT / dependencies.PAGE).read_text(encoding="utf-8")
    assert dependencies.with_reasons(page) == page
    with pytest.raises(ValueError, match="lacks the lines"):
        dependencies.with_reasons(page.replace(dependencies.END, ""))


def test_what_the_library_itself_needs_is_among_the_packages_asked_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(one for group in project["optional-dependencies"].values() for one in group)]
    names = {dependencies.canonicalize_name(re.match(r"[\w.-]+", one)[0]) for one in wanted}
    assert names - {"scalebook"} <= ASKED["all"] | set(TABLE["asked_for"]["data"])
    assert set(DATA) - ASKED["all"] == set(TABLE["asked_for"]["data"])


@as_pinned
def test_the_table_of_licences_has_every_package_and_what_it_says_of_itself():
    assert set(TABLE["licences"]) == set(ALL) | set(DATA)
    here = dependencies.installed(dependencies.everything())
    assert len(here) > 150
    said = {name: dependencies.licence(name) for name in here} | TABLE["corrected"]
    assert {name: words for name, words in TABLE["licences"].items() if name in said and said[name] != words} == {}


def test_the_newest_versions_are_tried_of_everything_that_is_asked_for():
    lines = (ROOT / "requirements-latest.in").read_text(encoding="utf-8").splitlines()
    held = {re.match(r"[\w-]+", line)[0]: line for line in lines if not line.startswith("#")}
    assert set(held) == ASKED["all"]
    assert [line for name, line in held.items() if line != name] == ["jupyter-book<2", f"torch=={ALL['torch']}"]


def test_every_licence_goes_with_the_book_s():
    wrong = {name: words for name, words in TABLE["licences"].items()
             if not dependencies.parts(words) <= dependencies.COMPATIBLE}
    assert wrong == {}


def test_a_licence_that_does_not_fit_would_be_seen():
    assert not dependencies.parts("MIT AND GPL-3.0-only") <= dependencies.COMPATIBLE
    assert not dependencies.parts("not said") <= dependencies.COMPATIBLE


# The lock


def locked():
    """The packages of the lock: (pin, marker) and the hashes of each."""
    found, hashes = {}, []
    for line in (ROOT / lock.LOCK).read_text(encoding="utf-8").splitlines():
        if line.startswith("    "):
            hashes.append(re.fullmatch(r"    --hash=sha256:([0-9a-f]{64})( \\)?", line)[1])
        elif line and not line.startswith("#"):
            pin, _, marker = line.removesuffix(" \\").partition(" ; ")
            hashes = []
            found[pin, marker] = hashes
    return found


def test_the_lock_has_the_same_packages_versions_and_markers_as_the_requirements():
    pins = lock.requirements((ROOT / lock.SOURCE).read_text(encoding="utf-8"))
    assert {(lock.key(pin), marker) for pin, marker in locked()} == {(lock.key(pin), marker) for pin, marker in pins}


def test_every_package_of_the_lock_has_hashes_and_those_with_compiled_parts_have_many():
    hashes = {lock.key(pin).partition("==")[0]: set(found) for (pin, _), found in locked().items()}
    assert all(hashes.values())
    for name in ("numpy", "rpds-py", "pyzmq", "pyyaml", "sqlalchemy", "markupsafe"):
        assert len(hashes[name]) >= 15, f"{name} lacks files for other systems or Pythons"


def test_the_build_installs_from_the_lock_and_requires_its_hashes():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rule = makefile.partition(".venv/has-book: ")[2].partition("\n\n")[0]
    assert rule.startswith("requirements-book.lock")
    assert "--require-hashes -r requirements-book.lock" in rule


def test_a_package_that_nothing_pins_ends_the_locking():
    with pytest.raises(ValueError, match=r"differ in wheel==0.48.0"):
        lock.with_markers("a==1 \\\n    --hash=sha256:00\nwheel==0.48.0 \\\n    --hash=sha256:11\n", [("a==1", "")])


def test_the_examples_in_the_docstrings_hold():
    for module in (dependencies, lock):
        result = doctest.testmod(module)
        assert result.attempted
        assert not result.failed
