"""Reading the TOML files of this folder, and answering an unknown name with the nearest known ones."""

import difflib
import tomllib
from functools import cache
from pathlib import Path

from scalebook.checks import shown

FOLDER = Path(__file__).parent


@cache
def read(stem):
    """Return the content of `<stem>.toml` in this folder; raise ValueError when it is not valid TOML."""
    path = FOLDER / f"{stem}.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path.name} is not valid TOML: {error}") from error


def stems():
    """Return the names of the files in this folder, without `.toml`, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find(kind, name, known):
    """Return `known[name]`; raise ValueError that lists the nearest names when there is none.

    >>> find("model", "Mixtral", {"Mixtral-8x7B": 1, "DBRX": 2})
    Traceback (most recent call last):
    ...
    ValueError: no published model is named 'Mixtral'; the nearest names are 'Mixtral-8x7B'
    """
    if isinstance(name, str) and name in known:
        return known[name]
    by_lower_case = {key.lower(): key for key in known}
    if not isinstance(name, str):
        raise ValueError(f"name = {shown(name)} is not allowed; it must be the name of a published {kind}")
    near = difflib.get_close_matches(str(name).lower(), by_lower_case, n=5, cutoff=0.3)
    nearest = [by_lower_case[key] for key in near] or sorted(known)[:5]
    raise ValueError(f"no published {kind} is named {name!r}; the nearest names are "
                     + ", ".join(map(repr, nearest)))


def build(cls, kind, name, entry):
    """Make a dataclass from one TOML entry; raise ValueError that names a key the class does not have."""
    unknown = sorted(set(entry) - set(cls.__dataclass_fields__))
    if unknown:
        allowed = ", ".join(sorted(cls.__dataclass_fields__))
        raise ValueError(f"{kind} {name!r}: {unknown[0]!r} is not a field; allowed are {allowed}")
    return cls(name=name, **entry)
