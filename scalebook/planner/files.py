"""Models and clusters from TOML files, with errors that name the line.

A model file holds the fields of `published.ModelShape`; a cluster file `gpus`, and either `machine`, the name of a
published one, or the fields of `published.Machine`, or both, where the fields given replace the published ones. A name
and a source may be left out.
"""

import re
import tomllib
from dataclasses import MISSING, fields, replace
from pathlib import Path

from scalebook import published
from scalebook.planner.clusters import Cluster, machine_fields, named

OF_CLUSTER = ("gpus", "machine", "efficiency")


def read_model(path):
    """The `published.ModelShape` in a TOML file.

    Raises ValueError with the file, the line, and what is allowed there.
    """
    entry, where = _read(path)
    _known(entry, [one.name for one in fields(published.ModelShape)], where)
    for one in fields(published.ModelShape):
        if one.default is MISSING and one.name not in ("name", "source") and one.name not in entry:
            raise ValueError(f"{path}: {one.name!r} is missing")
    return _build(lambda: published.ModelShape(**{"name": Path(path).stem, "source": str(path), **entry}), where)


def read_cluster(path):
    """The `Cluster` in a TOML file. Raises ValueError with the file, the line, and what is allowed there."""
    entry, where = _read(path)
    _known(entry, [*OF_CLUSTER, *machine_fields()], where)
    own = {key: value for key, value in entry.items() if key not in OF_CLUSTER}
    if "gpus" not in entry:
        raise ValueError(f"{path}: 'gpus' is missing")

    def make():
        if "machine" in entry:
            base = published.machine(named("GPU", entry["machine"], published.machines()))
            both = {"nvlink_two_way": 2 * own["nvlink_one_way"]} if "nvlink_one_way" in own else {}
            machine = replace(base, **{"name": Path(path).stem, **both, **own} if own else {})
        else:
            given = {"name": Path(path).stem, "source": str(path), "gpu": Path(path).stem, **own}
            one_way = given.get("nvlink_one_way")
            machine = published.Machine(**({"nvlink_two_way": 2 * one_way} if one_way else {}) | given)
        return Cluster(machine, entry["gpus"], entry.get("efficiency"))

    return _build(make, where)


def _read(path):
    """A file's content, and a function that says where a key stands in it."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
        entry = tomllib.loads(text)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: it is not text in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        found = re.match(r"(.*) \(at (?:line (\d+), .*|end of document)\)$", str(error))
        line = found[2] or len(text.splitlines()) or 1
        raise ValueError(f"{path}, line {line}: it is not TOML: {found[1]}") from None

    def where(key):
        pattern = re.compile(rf"""\s*\[*["']?{re.escape(key)}\b""")
        lines = text.splitlines()
        places = (i for i, line in enumerate(lines, 1) if pattern.match(line) and _is_toml(lines[:i - 1]))
        place = next(places, None)
        return f"{path}, line {place}" if place else f"{path}"

    return entry, where


def _is_toml(lines):
    """Whether a file could end here. Inside a text of several lines it could not."""
    try:
        tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError:
        return False
    return True


def _known(entry, allowed, where):
    for key in entry:
        if key not in allowed:
            raise ValueError(f"{where(key)}: {key!r} is not a field; allowed are {', '.join(allowed)}")


def _build(make, where):
    """What `make` returns; its ValueErrors get the line of the field that they name."""
    try:
        return make()
    except ValueError as error:
        field = re.search(r"(\w+) = ", str(error)) or re.search(r": (\w+) is not known", str(error))
        named_there = [field[1]] if field else []
        # A field that is missing stands on no line; another that the error speaks of, or the machine, may.
        places = map(where, [*named_there, *re.findall(r"[a-z]\w+", str(error)), "machine"])
        raise ValueError(f"{next((place for place in places if ', line ' in place), where(''))}: {error}") from None
    except TypeError as error:  # text where a number is due, in an arithmetic expression
        raise ValueError(f"{where('nvlink_one_way')}: {error}") from None
