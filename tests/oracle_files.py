"""Files of other people's packages that serve as oracles and are loaded by their path: `python -m tests.oracle_files`.

AutoGPTQ's layers for the CPU read a GPTQ checkpoint. The package itself is not installed: it asks for much that is not
needed, and brings a top-level package `tests` that would hide this one. pip fetches its sdist, pinned by hash, and only
these files are taken out of it. They lie in `share/scalebook-oracles/` of the environment.
"""

import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

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
    with tempfile.TemporaryDirectory(prefix="scalebook-") as folder:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text(f"{SDIST} --hash=sha256:{SHA256}\n", encoding="utf-8")
        # pip runs setup.py for the package's name, which asks for CUDA unless told not to.
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--no-deps",
             "--no-binary", ":all:", "--no-build-isolation", "--require-hashes", "--requirement", str(requirements),
             "--dest", folder],
            env={**os.environ, "BUILD_CUDA_EXT": "0"}, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            check=False)
        sdists = list(Path(folder).glob("*.tar.gz"))
        if done.returncode or len(sdists) != 1:
            raise RuntimeError(f"pip could not fetch {SDIST}; it said:\n{(done.stdout + done.stderr)[-1500:]}")
        with tarfile.open(sdists[0]) as archive:
            found = {name: archive.extractfile(INSIDE + name).read() for name in NAMES}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in found.items():
        part = FOLDER / f"{name}.part"
        part.write_bytes(content)
        part.replace(FOLDER / name)


if __name__ == "__main__":
    fetch()
    print(f"The oracles' files lie in {FOLDER}")
