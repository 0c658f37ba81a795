"""What imports what: no torch where nothing computes with tensors, quick imports, and one direction."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "scalebook"
WITHOUT_TORCH = ["scalebook.formulas", "scalebook.formulas.pipeline", "scalebook.formulas.moe",
                 "scalebook.formulas.quantization", "scalebook.formulas.collectives",
                 "scalebook.formulas.tensor_parallel", "scalebook.formulas.zero", "scalebook.tensor_parallel",
                 "scalebook.zero", "scalebook.mesh", "scalebook.planner", "scalebook.published",
                 "scalebook.pipeline", "scalebook.moe",
                 "scalebook.quantization", "scalebook.quantization.llama_cpp", "scalebook.texts",
                 "scalebook.explorer", "scalebook.exercises", "scalebook.book.listings", "scalebook.book.execute",
                 "scalebook.book.notebooks"]
HEAVY = ["torch", "altair", "matplotlib", "ipywidgets", "IPython", "nbformat"]
SECONDS = 0.5

# The layers, lowest first. A module imports from its own layer's part and from lower layers, never from a higher one.
COMMON = {"checks", "colours", "lazy", "vega"}
LOWEST = {"formulas", "published"}
SHARED = {"explorer", "ranks", "exercises", "texts", "data"}
SUBJECTS = {"collectives", "moe", "quantization", "tensor_parallel", "pipeline", "zero", "mesh", "planner"}
ABOVE = {"charts", "labs"}
MAY_IMPORT = {
    **{part: set() for part in COMMON},
    **dict.fromkeys(LOWEST, COMMON),
    **dict.fromkeys(SHARED, COMMON),
    **dict.fromkeys(SUBJECTS, COMMON | LOWEST | SUBJECTS),
    "charts": COMMON | LOWEST | SUBJECTS | {"explorer"},
    "labs": COMMON | LOWEST | SUBJECTS | {"ranks", "texts", "data"},
    "book": COMMON | LOWEST | {"explorer"},
}


def parts():
    return sorted({path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")} - {"__init__"})


def imports_of(source, package):
    """The modules that a source imports anywhere in it, as full names. `package` resolves relative imports.

    >>> sorted(imports_of("from . import b\\nimport torch.nn", "scalebook.a"))
    ['scalebook.a', 'scalebook.a.b', 'torch.nn']
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[:len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def wrong_directions(part, imported):
    """The parts of scalebook among the imported modules that `part` may not import."""
    known = set(parts()) | set(MAY_IMPORT)
    own = {name.split(".")[1] for name in imported if name.startswith("scalebook.")} & known
    return sorted(own - MAY_IMPORT.get(part, set()) - {part})


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path):
    relative = path.relative_to(ROOT)
    package = ".".join(["scalebook", *relative.parts[:-1]])
    part = relative.parts[0].removesuffix(".py")
    if part == "__init__":
        assert not {name for name in imports_of(path.read_text(encoding="utf-8"), package)
                    if name.startswith("scalebook.")}
        return
    assert part in MAY_IMPORT, f"say in MAY_IMPORT what scalebook.{part} may import"
    assert wrong_directions(part, imports_of(path.read_text(encoding="utf-8"), package)) == []


def test_a_wrong_direction_is_caught():
    assert wrong_directions("explorer", imports_of("from scalebook.pipeline import simulate", "x")) == ["pipeline"]
    assert wrong_directions("formulas", imports_of("from .. import labs", "scalebook.formulas")) == ["labs"]
    assert wrong_directions("pipeline", imports_of("def f():\n    import scalebook.charts.pipeline", "scalebook")) == [
        "charts"]
    assert wrong_directions("labs", imports_of("from scalebook import ranks, pipeline", "scalebook.labs")) == []


def seconds_of(module):
    """Processor seconds of an import in a new process, which other processes do not lengthen, and its heavy modules."""
    code = (f"import sys, time; t = time.process_time(); import {module}; t = time.process_time() - t; "
            f"print(t, *(m for m in {HEAVY!r} if m in sys.modules))")
    result = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True,
                            stdin=subprocess.DEVNULL)
    seconds, *heavy = result.stdout.split()
    return float(seconds), heavy


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_the_import_is_quick_and_brings_no_heavy_module(module):
    best = float("inf")
    for _ in range(5):
        seconds, heavy = seconds_of(module)
        assert heavy == []
        best = min(best, seconds)
        if best < SECONDS:
            break
    assert best < SECONDS


def test_a_slow_import_is_seen():
    seconds, heavy = seconds_of("matplotlib")
    assert seconds > 0
    assert heavy == ["matplotlib"]
