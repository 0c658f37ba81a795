"""Run every check, one stage after the other: `python -m tests.run [--slow] [stage ...]`.

A stage that fails does not stop the others, so that one run tells all that is wrong. Within a stage tests run side by
side, on as many workers as the machine has cores (at most 4); what measures time (the marker `alone`) has a stage of
its own, in which nothing else runs.
"""

import argparse
import os
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORES = os.cpu_count() or 1
WORKERS = min(CORES, 4)
COLAB = ROOT / ".venv-colab" / "bin" / "python"
# What must also hold under Colab's versions: whatever computes or shows, not what builds the site.
COLAB_TESTS = ("formulas", "published", "explorer", "ranks")
PLAIN = "not slow and not browser and not live"
SLOWEST = "--durations=10", "--durations-min=5"
# What makes the libraries compute as on a processor that has AVX2 and nothing newer.
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell"}


@dataclass(frozen=True)
class Command:
    """A command, and what its environment has beside this process's."""

    arguments: list
    environment: dict = field(default_factory=dict)

    def run(self):
        """Run it in the repository; return whether it succeeded."""
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **self.environment}
        done = subprocess.run(list(map(str, self.arguments)), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                              check=False)
        return done.returncode == 0


def python(*arguments):
    return Command([sys.executable, *arguments])


def pytest(*arguments, of=sys.executable):
    """Pytest, one test after the other."""
    return Command([of, "-m", "pytest", "-q", *SLOWEST, *arguments], library_for(of))


def library_for(python):
    """What makes a Python find the library: Colab's environment does not have it installed, as Colab does not."""
    return {"PYTHONPATH": str(ROOT)} if python == COLAB else {}


def side_by_side(*arguments, keep_together, of=sys.executable):
    """Pytest on several workers; `keep_together` says which tests go to one worker ("loadfile" or "loadgroup").

    The workers share the cores, so each has its part of the threads.
    """
    threads = threads_of(CORES // WORKERS)
    workers = ["-n", WORKERS, "--dist", keep_together]
    return Command([of, "-m", "pytest", "-q", *SLOWEST, *workers, *arguments], threads | library_for(of))


def threads_of(number):
    """The environment in which each process computes on so many threads."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(number))


def stages(slow):
    """Return the stages by name: each a list of commands that must all succeed."""
    apart = ["--ignore=tests/test_build.py", "--ignore=tests/colab"]  # their stages come later
    measured, others = chapters()
    found = {
        "lint": [python("-m", "ruff", "check", ".")],
        "unit": [side_by_side("tests", *apart, "-m", f"{PLAIN} and not alone", keep_together="loadfile"),
                 pytest("--doctest-modules", "scalebook")],
        "notebooks": [*([pytest("--nbval", *measured)] if measured else []),
                      *([side_by_side("--nbval", *others, keep_together="loadfile")] if others else [])],
        "book": [python("-m", "scalebook.book.build"), pytest("tests/test_build.py", "-m", f"{PLAIN} and not alone")],
        "browser": [python("-m", "scalebook.book.chromium"),
                    side_by_side("--no-loadscope-reorder", "tests/live", "tests/browser", "-m",
                                 "not slow and not alone", keep_together="loadgroup")],
        "colab": [side_by_side("-m", f"{PLAIN} and not alone", *colab_tests(), of=COLAB, keep_together="loadgroup")],
        "alone": [pytest("tests", "-m", "alone and not slow"),
                  pytest("-m", f"{PLAIN} and alone", *colab_tests(), of=COLAB)],
    }
    if slow:
        in_browsers = "tests/live", "tests/browser"
        found["slow"] = [
            side_by_side("--no-loadscope-reorder", *in_browsers, "-m", "slow", keep_together="loadgroup"),
            # Some of the others look at the clock, and have the machine to themselves.
            pytest("tests", *(f"--ignore={folder}" for folder in in_browsers), "-m", "slow")]
        # Sums in another order round in another way: what is printed must be the same all the same.
        found["threads"] = [Command(pytest("--nbval", *measured, *others).arguments, threads_of(2))]
        # So do other instructions: what is printed on a new processor must be the same on an older one.
        found["instructions"] = [Command(pytest("--nbval", *measured, *others).arguments, AVX2)]
    return found


def chapters():
    """The notebooks in which a cell measures time (they run one after the other), and the others."""
    measuring = tomllib.loads((ROOT / "tests" / "measured_cells.toml").read_text(encoding="utf-8"))
    paths = sorted((ROOT / "chapters").glob("*.ipynb"))
    return [path for path in paths if path.stem in measuring], [path for path in paths if path.stem not in measuring]


def colab_tests():
    """The test files that run under Colab's versions."""
    files = sorted((ROOT / "tests").glob("test_*.py"))
    chosen = [str(file.relative_to(ROOT)) for file in files
              if file.stem.removeprefix("test_").startswith(COLAB_TESTS)]
    own = ["tests/colab"] if list((ROOT / "tests" / "colab").glob("test_*.py")) else []
    return [*own, *chosen]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slow", action="store_true", help="also what takes long")
    parser.add_argument("only", nargs="*", help="the stages to run (default: all)")
    options = parser.parse_args()
    if options.slow:
        os.environ["SCALEBOOK_OTHER_EXAMPLES"] = "1"  # see tests/conftest.py
    all_stages = stages(options.slow)
    unknown = set(options.only) - set(all_stages)
    if unknown:
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(all_stages)}")
    outcome, times = {}, {}
    for name in options.only or all_stages:
        print(f"\n=== {name}", flush=True)
        start = time.monotonic()
        outcome[name] = all(command.run() for command in all_stages[name])
        times[name] = time.monotonic() - start
        print(f"=== {name}: {'passed' if outcome[name] else 'FAILED'} in {times[name]:.0f} s", flush=True)
    print()
    for name, passed in outcome.items():
        print(f"{name:10} {'passed' if passed else 'FAILED'} {times[name]:6.0f} s")
    good = sum(outcome.values())
    print(f"stages: {good} passed, {len(outcome) - good} failed; {sum(times.values()):.0f} s")
    sys.exit(good != len(outcome))


if __name__ == "__main__":
    main()
