"""A real JupyterLab for the time of a block: a server with a token on a free port, in a folder of its own.

Nothing of the reader's own settings is read or written, and nothing is left: no process, no port, no file.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

import psutil

RUN_ALL = "() => jupyterapp.commands.execute('notebook:run-all-cells')"
ERRORS = """() => jupyterapp.shell.currentWidget.content.widgets.flatMap((cell) =>
  cell.model.type !== "code" ? [] : cell.model.sharedModel.getOutputs().filter((one) => one.output_type === "error")
    .map((one) => `${one.ename}: ${one.evalue}`))"""
# Runs code in the notebook's own kernel, over the page's own connection, and gives what it prints.
ASK = """async (code) => {
  const kernel = jupyterapp.shell.currentWidget.context.sessionContext.session.kernel;
  let printed = "";
  const future = kernel.requestExecute({ code, store_history: false });
  future.onIOPub = (message) => { if (message.content.name === "stdout") printed += message.content.text; };
  const reply = await future.done;
  if (reply.content.status !== "ok") throw new Error(`${reply.content.ename}: ${reply.content.evalue}`);
  return printed;
}"""


@dataclass
class Lab:
    """A running JupyterLab: where it is, and its folder."""

    address: str
    token: str
    folder: Path
    process: psutil.Process

    def url(self, notebook):
        """The address of a notebook of the folder, opened alone with fresh settings."""
        return f"{self.address}/lab/tree/{notebook}?token={self.token}&reset"


@contextmanager
def jupyter_lab(folder, environment=None):
    """Start a JupyterLab over `folder` and end it, with its kernels, whatever happens."""
    folder = Path(folder)
    own = folder / ".jupyter-own"
    own.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    places = {f"JUPYTER_{name}_DIR": str(own / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    places |= {"JUPYTERLAB_SETTINGS_DIR": str(own / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(own / "workspaces"),
               "IPYTHONDIR": str(own / "ipython")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}",
               "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}",
               "--allow-root", "--expose-app-in-browser", "--LabApp.news_url=None", "--LabApp.check_for_updates_class="
               "jupyterlab.NeverCheckForUpdate", "--ServerApp.log_level=WARN"]
    clean = {key: value for key, value in os.environ.items() if key != "SCALEBOOK_STATIC"}
    with (own / "log").open("w", encoding="utf-8") as log:
        started = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   env=clean | places | (environment or {}))
    lab = Lab(f"http://127.0.0.1:{port}", token, folder, psutil.Process(started.pid))
    try:
        _wait_until_it_answers(lab, started, own / "log")
        yield lab
    finally:
        _end(lab.process)
        started.wait(10)
        shutil.rmtree(own, ignore_errors=True)


def _wait_until_it_answers(lab, started, log, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if started.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{lab.address}/api/status?token={lab.token}", timeout=5):
                return
        except (URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start: {log.read_text(encoding='utf-8')[-2000:]}")


def _end(process):
    """End the server and everything that it started."""
    try:
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    process.terminate()  # the server then asks its kernels to end
    _, alive = psutil.wait_procs(family, timeout=15)
    for one in alive:
        one.kill()
    psutil.wait_procs(alive, timeout=5)


def open_notebook(page, lab, name):
    """Open a notebook in `page` and wait until its kernel is ready."""
    page.goto(lab.url(name))
    page.wait_for_function("() => globalThis.jupyterapp?.shell?.currentWidget?.context?.sessionContext"
                           "?.session?.kernel?.status === 'idle'", timeout=60_000)


def run_all(page):
    """Run all cells to the end; raise RuntimeError with their errors."""
    page.evaluate(RUN_ALL)
    errors = page.evaluate(ERRORS)
    if errors:
        raise RuntimeError(f"the notebook does not run: {errors}")


def ask(page, code):
    """Run code in the notebook's kernel and return what it prints."""
    return page.evaluate(ASK, code).strip()
