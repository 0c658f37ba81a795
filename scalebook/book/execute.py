"""Run the chapters and write their outputs: the only way outputs get into the repository.

    python -m scalebook.book.execute                     # every chapter
    python -m scalebook.book.execute 04_pipeline_parallelism --report _build/execution.json

Each chapter runs in a new kernel of this Python, in its own folder, with SCALEBOOK_STATIC=1 (explorers write figures
and not widgets). What is written depends on the results alone: no times, no widget state, execution counts 1, 2, 3,
consecutive pieces of one stream joined. A cell that raises, or that writes to stderr, ends the run with its
source and traceback, and its chapter stays as it was. A chapter over its time limit (`over_limits`) is written and
fails the command.
"""

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path

from scalebook.book import notebooks

STATIC = {"SCALEBOOK_STATIC": "1"}
# Seconds on 2 cores. A reader leaves when a cell takes longer.
CELL_LIMIT = 60
CHAPTER_LIMITS = {"02_quantization": 150}
CHAPTER_LIMIT = 90
BOOK_LIMIT = 480
# A cell that hangs is interrupted after this many seconds.
CELL_TIMEOUT = 300

# What jupyter_client says of a kernel that never answered.
ENDED_AT_START = "Kernel died before replying to kernel_info"

KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
# Without `version`, which changes with every patch release of Python.
LANGUAGE_INFO = {
    "codemirror_mode": {"name": "ipython", "version": 3}, "file_extension": ".py", "mimetype": "text/x-python",
    "name": "python", "nbconvert_exporter": "python", "pygments_lexer": "ipython3",
}
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class CellFailed(Exception):
    """A cell raised, hung, killed its kernel or wrote to stderr; the message holds its id, source and traceback."""


def run(path, *, folder=None, environment=None, timeout=CELL_TIMEOUT):
    """Run one notebook; return (executed notebook, seconds of each code cell by id). The file is not touched.

    It runs in `folder` (its own, by default), with `environment` added to SCALEBOOK_STATIC=1. Raises `CellFailed`.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    path = Path(path)
    notebook = notebooks.read(path)
    started, seconds = {}, {}

    def note_start(cell, cell_index):
        started[cell["id"]] = time.perf_counter()

    def note_end(cell, cell_index, execute_reply):
        seconds[cell["id"]] = time.perf_counter() - started[cell["id"]]

    client = NotebookClient(
        notebook, timeout=timeout, kernel_name=KERNELSPEC["name"], record_timing=False, store_widget_state=False,
        # The kernel's own start-up remarks are not the chapter's.
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(folder or path.resolve().parent)}},
        on_cell_execute=note_start, on_cell_executed=note_end)
    try:
        start(client, env={**os.environ, **STATIC, **(environment or {})})
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        cell = _running_cell(notebook, started, seconds)
        told = [str(error)] if isinstance(error, CellTimeoutError) else []
        told = [*told, _traceback(cell)] if _traceback(cell) else [str(error)]
        raise CellFailed(_failure(path, cell, "\n".join(told))) from error
    for cell in notebooks.code_cells(notebook):
        written = "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stderr")
        if written:
            raise CellFailed(_failure(path, cell, "wrote to stderr, which no chapter stores:\n" + written))
    return normalised(notebook), seconds


def start(client, **options):
    """Execute the notebook of a client of nbclient; a kernel that ends before it answers is started once more.

    A kernel is told ports that were free a moment ago. Where another program has taken one since, it ends, and no cell
    has run. The second one is told new ports; when it ends, too, the error is raised.
    """
    try:
        return client.execute(**options)
    except RuntimeError as error:
        if str(error) != ENDED_AT_START:
            raise
    return client.execute(**options)


def _running_cell(notebook, started, seconds):
    """Return the cell that failed: one with an error output, else the one that had started last."""
    for cell in notebooks.code_cells(notebook):
        if any(output.output_type == "error" for output in cell.outputs):
            return cell
    last = max(started, key=started.get)
    return next(cell for cell in notebook.cells if cell["id"] == last)


def _traceback(cell):
    return "\n".join("\n".join(o.traceback) for o in cell.outputs if o.output_type == "error")


def _failure(path, cell, what):
    source = "\n".join(f"    {line}" for line in cell.source.splitlines())
    return f"{notebooks.label(path, cell)} failed:\n{source}\n\n{ANSI.sub('', what)}"


def normalised(notebook):
    """Take out of an executed notebook, in place, what changes from run to run; return it."""
    for key in ("widgets", "signature"):
        notebook.metadata.pop(key, None)
    notebook.metadata.update(kernelspec=dict(KERNELSPEC), language_info=dict(LANGUAGE_INFO))
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    count = 0
    for cell in notebook.cells:
        for key in ("execution", "ExecuteTime", "collapsed", "scrolled"):
            cell.metadata.pop(key, None)
        if cell.cell_type != "code":
            continue
        executed = bool(cell.source.strip())
        count += executed
        cell.execution_count = count if executed else None
        cell.outputs = joined_streams(cell.outputs)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
    return notebook


def joined_streams(outputs):
    """Join consecutive pieces of the same stream: how often a kernel flushes is chance."""
    joined = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def report_of(seconds_by_chapter):
    """Return the execution report: for each chapter its seconds, its slowest cell, and each cell's seconds."""
    report = {}
    for name, cells in seconds_by_chapter.items():
        slowest = max(cells, key=cells.get, default=None)
        report[name] = {"seconds": round(sum(cells.values()), 3), "slowest": slowest,
                        "cells": {cell: round(value, 3) for cell, value in cells.items()}}
    return report


def over_limits(report):
    """Return one complaint for each cell, chapter, or whole book that takes longer than its limit.

    >>> over_limits({"01_x": {"seconds": 95, "cells": {"a": 61, "b": 34}}})
    ['01_x: cell a took 61 s; the limit is 60 s', '01_x took 95 s; the limit is 90 s']
    """
    complaints = []
    for name, chapter in report.items():
        complaints += [f"{name}: cell {cell} took {seconds:.3g} s; the limit is {CELL_LIMIT} s"
                       for cell, seconds in chapter["cells"].items() if seconds > CELL_LIMIT]
        limit = CHAPTER_LIMITS.get(name, CHAPTER_LIMIT)
        if chapter["seconds"] > limit:
            complaints.append(f"{name} took {chapter['seconds']:.3g} s; the limit is {limit} s")
    total = sum(chapter["seconds"] for chapter in report.values())
    if total > BOOK_LIMIT:
        complaints.append(f"the book took {total:.4g} s; the limit is {BOOK_LIMIT} s")
    return complaints


def main(arguments=None):
    """Execute chapters and write their outputs; return the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m scalebook.book.execute", description=__doc__.split("\n")[0])
    parser.add_argument("chapters", nargs="*", help="chapters by name or path (default: all)")
    parser.add_argument("--folder", type=Path, default=notebooks.CHAPTERS, help="where the chapters lie")
    parser.add_argument("--report", type=Path, help="write the seconds of every cell to this JSON file")
    parser.add_argument("--timeout", type=float, default=CELL_TIMEOUT, help="seconds after which a cell is interrupted")
    options = parser.parse_args(arguments)
    try:
        paths = notebooks.find(options.chapters, options.folder)
    except ValueError as error:
        parser.error(str(error))
    seconds_by_chapter = {}
    for path in paths:
        try:
            notebook, seconds = run(path, timeout=options.timeout)
        except CellFailed as error:
            print(error, file=sys.stderr)
            return 1
        changed = notebooks.write(path, notebook)
        seconds_by_chapter[path.stem] = seconds
        entry = report_of({path.stem: seconds})[path.stem]
        slowest = f"slowest cell {entry['slowest']} {seconds[entry['slowest']]:.1f} s" if seconds else "no code cells"
        print(f"{path.name}: {entry['seconds']:.1f} s, {slowest}, {'written' if changed else 'unchanged'}", flush=True)
    report = report_of(seconds_by_chapter)
    if options.report:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    complaints = over_limits(report)
    print("\n".join(complaints), file=sys.stderr, end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
