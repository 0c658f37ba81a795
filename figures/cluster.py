"""Draw 512 GPUs as a cube on dark slate: `python figures/cluster.py` writes cluster.svg beside itself."""

from pathlib import Path

from scalebook.charts.mesh.picture import DARK, draw

if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"), DARK)
