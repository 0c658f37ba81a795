"""Every drawing of the book is made by a script beside it, which draws it again."""

import subprocess
import sys
from pathlib import Path

import pytest

FIGURES = Path(__file__).resolve().parents[1] / "figures"
SCRIPTS = sorted(FIGURES.glob("*.py"))
DRAWINGS = [script for script in SCRIPTS if script.stem != "screenshot"]  # a photograph depends on the machine's fonts


def test_every_drawing_has_its_script():
    drawings = {path.stem for path in FIGURES.iterdir() if path.suffix in (".svg", ".png")}
    assert drawings == {path.stem for path in SCRIPTS}


@pytest.mark.parametrize("script", DRAWINGS, ids=lambda path: path.stem)
def test_a_script_draws_the_committed_drawing_to_the_byte(script, tmp_path):
    copy = tmp_path / script.name
    copy.write_bytes(script.read_bytes())
    subprocess.run([sys.executable, copy], check=True, timeout=120)
    assert copy.with_suffix(".svg").read_bytes() == script.with_suffix(".svg").read_bytes()
