"""The library as a wheel, made without setuptools, an index or a temporary folder, and the same to the byte each time.

A notebook that travels alone brings this wheel along. What belongs to it stands in `pyproject.toml`: the packages, and
which of their files beside the Python sources. A wheel is a zip archive with a list of its files and their hashes
(the binary distribution format of the Python Packaging User Guide).
"""

import base64
import hashlib
import io
import tomllib
import zipfile
from pathlib import Path

START_OF_ZIP = (1980, 1, 1, 0, 0, 0)  # the earliest date that a zip archive can hold: no file bears its own
LICENCES = ("LICENSE", "LICENSE-text")


def wheel(root, extra=None):
    """Return (file name, bytes) of the wheel of the library in `root`.

    `extra` maps the names of further files in the archive to their bytes. Raises ValueError for one that is there
    already.
    """
    project = tomllib.loads((Path(root) / "pyproject.toml").read_text(encoding="utf-8"))
    name, version = project["project"]["name"], project["project"]["version"]
    files = library_files(Path(root), project)
    for path, content in (extra or {}).items():
        if path in files:
            raise ValueError(f"extra = {path!r} is not allowed; the library has a file of that name")
        files[path] = content
    folder = f"{name}-{version}.dist-info"
    files[f"{folder}/METADATA"] = metadata(project["project"]).encode()
    files[f"{folder}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: scalebook\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    for licence in LICENCES:
        files[f"{folder}/licenses/{licence}"] = (Path(root) / licence).read_bytes()
    files[f"{folder}/RECORD"] = record(files, f"{folder}/RECORD")
    return f"{name}-{version}-py3-none-any.whl", archive(files)


def library_files(root, project):
    """The files of every package by their names in the archive: Python sources, and the data that the project names."""
    name = project["project"]["name"]
    data = project["tool"]["setuptools"]["package-data"]
    found = {}
    for marker in sorted((root / name).rglob("__init__.py")):
        package = ".".join(marker.parent.relative_to(root).parts)
        for pattern in ("*.py", *data.get(package, []), *data.get("*", [])):
            for path in sorted(marker.parent.glob(pattern)):
                found[path.relative_to(root).as_posix()] = path.read_bytes()
    return found


def metadata(project):
    """The text of METADATA: the name, the version, and what the library and its extras depend on.

    >>> print(metadata({"name": "a", "version": "1", "description": "A.", "requires-python": ">=3.11",
    ...                 "license": "MIT", "dependencies": ["b>=2"], "optional-dependencies": {"c": ["d>=3"]}}), end="")
    Metadata-Version: 2.4
    Name: a
    Version: 1
    Summary: A.
    License-Expression: MIT
    Requires-Python: >=3.11
    Requires-Dist: b>=2
    Provides-Extra: c
    Requires-Dist: d>=3; extra == "c"
    """
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {project['version']}",
             f"Summary: {project['description']}", f"License-Expression: {project['license']}",
             f"Requires-Python: {project['requires-python']}",
             *(f"Requires-Dist: {one}" for one in project["dependencies"])]
    for extra, needed in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {one}; extra == "{extra}"' for one in needed]
    return "\n".join(lines) + "\n"


def record(files, own_name):
    """The bytes of RECORD: each file's name, hash and size, and its own name alone."""
    lines = []
    for name, content in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        lines.append(f"{name},sha256={digest},{len(content)}")
    return ("\n".join([*lines, f"{own_name},,"]) + "\n").encode()


def archive(files):
    """A zip archive of files, sorted by name (dist-info last, as installers like it), without dates and owners."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
        for name in sorted(files, key=lambda name: (".dist-info/" in name, name)):
            entry = zipfile.ZipInfo(name, START_OF_ZIP)
            entry.compress_type, entry.create_system, entry.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
            made.writestr(entry, files[name])
    return packed.getvalue()
