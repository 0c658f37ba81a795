"""Write `requirements-book.lock`: the packages of the build, each with the hash of every file that the index has of it.

    python -m scalebook.book.lock

`make book` installs from it with pip's `--require-hashes`, so that what is installed is, to the byte, what the book was
made with, on Linux and on macOS and under every Python that the packages support. pip-tools asks the index; it is
installed into a folder of its own for as long as that takes.
"""

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE, LOCK = "requirements-book.txt", "requirements-book.lock"
PIP_TOOLS = "pip-tools==7.6.2"
HEAD = (f"# {SOURCE} with hashes, written by `python -m scalebook.book.lock`: change that file, and run the command.\n")


def requirements(text):
    """The pins of a requirements file, as pairs (what is pinned, the marker that says where, or "").

    >>> requirements("# a comment\\na==1\\nb==2; sys_platform == 'darwin'\\n")
    [('a==1', ''), ('b==2', "sys_platform == 'darwin'")]
    """
    pins = [line.partition(";") for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(pin.strip(), marker.strip()) for pin, _, marker in pins]


def with_markers(compiled, pins):
    """The compiled lock with the markers of the pins, which pip-tools would judge for this machine alone.

    Raises ValueError when the lock has other packages than the pins: then one is missing, or asked for in vain.

    >>> with_markers("a==1 \\\\\\n    --hash=sha256:00\\n", [("a==1", "os_name == 'posix'")])
    "a==1 ; os_name == 'posix' \\\\\\n    --hash=sha256:00\\n"
    """
    marker_of = {key(pin): marker for pin, marker in pins}
    locked = re.findall(r"^([^\s#][^\s]*)", compiled, re.MULTILINE)
    other = {key(pin) for pin in locked} ^ set(marker_of)
    if other:
        raise ValueError(f"{SOURCE} and what it needs differ in {', '.join(sorted(other))}")
    return re.sub(r"^([^\s#]\S*) ", lambda found: f"{found[1]} ; {marker_of[key(found[1])]} "
                  if marker_of[key(found[1])] else found[0], compiled, flags=re.MULTILINE)


def key(pin):
    """A pin with its name in the one way that names compare: Foo_Bar==1 is foo-bar==1."""
    name, _, version = pin.partition("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


def compiled(pins):
    """What pip-tools makes of the pins: each with the hashes of all its files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "tools", with_pip=True)
        python = folder / "tools" / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", PIP_TOOLS], check=True)
        (folder / "in.txt").write_text("".join(f"{pin}\n" for pin, _ in pins), encoding="utf-8")
        subprocess.run([python, "-m", "piptools", "compile", "--generate-hashes", "--allow-unsafe", "--no-annotate",
                        "--no-header", "--no-emit-options", "--no-strip-extras", "--quiet",
                        "--output-file", str(folder / "out.txt"), str(folder / "in.txt")], check=True)
        text = (folder / "out.txt").read_text(encoding="utf-8")
    return "".join(line for line in text.splitlines(keepends=True) if line.strip() and not line.startswith("#"))


def main():
    """Write the lock."""
    pins = requirements((ROOT / SOURCE).read_text(encoding="utf-8"))
    (ROOT / LOCK).write_text(HEAD + with_markers(compiled(pins), pins), encoding="utf-8")
    print(f"{LOCK}: {len(pins)} packages", file=sys.stderr)


if __name__ == "__main__":
    main()
