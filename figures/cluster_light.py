"""Draw 512 GPUs as a cube on white: `python figures/cluster_light.py` writes cluster_light.svg beside itself."""

from pathlib import Path

from scalebook.charts.mesh.picture import LIGHT, draw

if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"), LIGHT)
