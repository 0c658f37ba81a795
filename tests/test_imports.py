"""What imports what: no torch where nothing computes with tensors, quick imports, and one direction."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from scalebook.book.needs import imported

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
COMMON = {"borders", "checks", "colours", "lazy", "vega"}
LOWEST = {"formulas", "published"}
SHARED = {"explorer", "ranks", "exercises", "texts", "data"}
SUBJECTS = {"collectives", "moe", "quantization", "tensor_parallel", "pipeline", "zero", "mesh", "planner"}
ABOVE = {"charts", "labs"}
MAY_IMPORT = {
    **{part: {"borders", "checks"} for part in COMMON},
    **dict.fromkeys(LOWEST, COMMON),
    **dict.fromkeys(SHARED, COMMON),
    **dict.fromkeys(SUBJECTS, COMMON | LOWEST | SUBJECTS),
    "charts": COMMON | LOWEST | SUBJECTS | {"explorer"},
    "labs": COMMON | LOWEST | SUBJECTS | {"ranks", "texts", "data"},
    "book": COMMON | LOWEST | {"explorer"},
}


@pytest.mark.parametrize(("package", "use"), [
    ("quantization", "from scalebook import quantization; quantization.quantize_rtn"),
    ("labs", "import runpy; runpy.run_module('scalebook.labs.hello', run_name='__main__')")])
def test_what_needs_pytorch_says_how_to_get_it(package, use):
    """The library is installed without it."""
    program = f"import sys; sys.modules['torch'] = None\n{use}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (f"ModuleNotFoundError: scalebook.{package} computes with PyTorch, which "
                                            "is not installed: pip install 'scalebook[labs]'")


def parts():
    return sorted({path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")} - {"__init__"})


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
        assert not {name for name in imported(path.read_text(encoding="utf-8"), package)
                    if name.startswith("scalebook.")}
        return
    assert part in MAY_IMPORT, f"say in MAY_IMPORT what scalebook.{part} may import"
    assert wrong_directions(part, imported(path.read_text(encoding="utf-8"), package)) == []


def test_a_wrong_direction_is_caught():
    assert wrong_directions("explorer", imported("from scalebook.pipeline import simulate", "x")) == ["pipeline"]
    assert wrong_directions("formulas", imported("from .. import labs", "scalebook.formulas")) == ["labs"]
    assert wrong_directions("pipeline", imported("def f():\n    import scalebook.charts.pipeline", "scalebook")) == [
        "charts"]
    assert wrong_directions("labs", imported("from scalebook import ranks, pipeline", "scalebook.labs")) == []


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


def test_a_function_that_a_package_gives_out_is_one_function_also_in_another_process():
    from scalebook import moe

    assert moe.capacity is moe.capacity
    assert pickle.loads(pickle.dumps(moe.capacity)) is moe.capacity
    assert moe.capacity.__wrapped__.__module__ == "scalebook.moe.dispatching"
