"""Measured tables: what the chapters show and no notebook has the time to compute.

Each is a small JSON file, written by one command that stands in its `provenance`, with versions, seeds and hashes. The
chapters measure a part again and compare.
"""

import json
import re
from importlib.resources import files
from typing import Any


def load(name: str) -> dict[str, Any]:
    """The table that is stored as `NAME.json`.

    Raises ValueError for a name that no table has.
    """
    folder = files(__name__)
    if not isinstance(name, str) or not re.fullmatch(r"\w+", name) or not folder.joinpath(f"{name}.json").is_file():
        known = sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))
        raise ValueError(f"name = {name!r} is not allowed; it must be one of {known}")
    return json.loads(folder.joinpath(f"{name}.json").read_text(encoding="utf-8"))
