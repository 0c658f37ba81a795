"""How the measured tables of the quantization chapter are written: as small JSON, with what they were made by."""

import datetime
import json
import platform
from importlib.metadata import version
from pathlib import Path

import torch

FOLDER = Path(__file__).parents[1] / "data"


def provenance(command, **more):
    """What a result was made by: the command, versions, threads, the day, and whatever else is given.

    >>> provenance("python -m it", seed=0)["seed"]
    0
    """
    versions = {name: version(name) for name in ("torch", "transformers", "gguf")}
    return {
        "command": command,
        "versions": {"python": platform.python_version(), **versions},
        "threads": torch.get_num_threads(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **more,
    }


def store(name, data, folder=FOLDER):
    """Write a table as `NAME.json`, one entry of its lists a line; it appears whole or not at all. Returns its path."""
    target = Path(folder) / f"{name}.json"
    part = target.with_suffix(".part")
    part.write_text(_lines(data) + "\n", encoding="utf-8")
    part.replace(target)
    return target


def _lines(data, indent=""):
    """JSON with a line for each entry of a dict or of a list of dicts, and everything deeper in one line.

    >>> print(_lines({"a": [1, 2], "rows": [{"x": 1}, {"x": 2}]}))
    {
     "a": [1, 2],
     "rows": [
      {"x": 1},
      {"x": 2}
     ]
    }
    """
    inner = indent + " "
    if isinstance(data, dict) and len(indent) < 2:
        entries = [f"{inner}{json.dumps(key)}: {_lines(value, inner)}" for key, value in data.items()]
        return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
    if isinstance(data, list) and data and isinstance(data[0], dict):
        return "[\n" + ",\n".join(inner + json.dumps(entry) for entry in data) + f"\n{indent}]"
    return json.dumps(data)
