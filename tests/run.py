"""Run every check, one stage after the other: `python -m tests.run [--slow] [stage ...]`.

A stage that fails does not stop the others, so that one run tells all that is wrong.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = [sys.executable]
PYTEST = [sys.executable, "-m", "pytest", "-q"]
COLAB = [str(ROOT / ".venv-colab" / "bin" / "python")]
# What must also hold under Colab's versions: whatever computes or shows, not what builds the site.
COLAB_TESTS = ("formulas", "published", "explorer", "ranks")


def stages(slow):
    """Return the stages by name: each a list of commands that must all succeed."""
    apart = ["--ignore=tests/test_build.py", "--ignore=tests/colab"]  # their stages come later
    found = {
        "lint": [[*PYTHON, "-m", "ruff", "check", "."]],
        "unit": [[*PYTEST, "tests", *apart, "-m", "not slow and not browser and not live"],
                 [*PYTEST, "--doctest-modules", "scalebook"]],
        "notebooks": [[*PYTEST, "--nbval", "chapters"]],
        "book": [[*PYTHON, "-m", "scalebook.book.build"],
                 [*PYTEST, "tests/test_build.py", "-m", "not slow and not browser"]],
        "browser": [[*PYTHON, "-m", "tests.chromium"], [*PYTEST, "tests", "-m", "(browser or live) and not slow"]],
        "colab": [[*COLAB, "-m", "pytest", "-q", "-m", "not slow and not browser and not live", *colab_tests()]],
    }
    if slow:
        found["slow"] = [[*PYTEST, "tests", "-m", "slow"]]
    return found


def colab_tests():
    """The test files that run under Colab's versions."""
    files = sorted((ROOT / "tests").glob("test_*.py"))
    chosen = [str(file.relative_to(ROOT)) for file in files
              if file.stem.removeprefix("test_").startswith(COLAB_TESTS)]
    own = ["tests/colab"] if list((ROOT / "tests" / "colab").glob("test_*.py")) else []
    return [*own, *chosen]


def run_stage(commands):
    """Run the commands until one fails; return whether all succeeded."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    for command in commands:
        if subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False).returncode:
            return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slow", action="store_true", help="also what takes long")
    parser.add_argument("only", nargs="*", help="the stages to run (default: all)")
    options = parser.parse_args()
    all_stages = stages(options.slow)
    unknown = set(options.only) - set(all_stages)
    if unknown:
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(all_stages)}")
    outcome, times = {}, {}
    for name in options.only or all_stages:
        print(f"\n=== {name}", flush=True)
        start = time.monotonic()
        outcome[name] = run_stage(all_stages[name])
        times[name] = time.monotonic() - start
        print(f"=== {name}: {'passed' if outcome[name] else 'FAILED'} in {times[name]:.0f} s", flush=True)
    print()
    for name, passed in outcome.items():
        print(f"{name:10} {'passed' if passed else 'FAILED'} {times[name]:6.0f} s")
    good = sum(outcome.values())
    print(f"stages: {good} passed, {len(outcome) - good} failed")
    sys.exit(good != len(outcome))


if __name__ == "__main__":
    main()
