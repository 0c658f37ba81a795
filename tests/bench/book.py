"""How long the whole book takes: to run every notebook, and to build the pages again.

The notebooks run as `make execute` runs them, but nothing is written. Beside them stand the limits that the book keeps.
"""

import time

from scalebook.book import build, execute, notebooks
from tests.bench.rows import Row

WARM_BUILD = 30


def run(options):
    """The rows: each notebook beside its limit, all together, and the build."""
    found, total = [], 0
    for path in notebooks.chapters():
        start = time.monotonic()
        execute.run(path)
        seconds = time.monotonic() - start
        total += seconds
        limit = execute.CHAPTER_LIMITS.get(path.stem, execute.CHAPTER_LIMIT)
        found.append(Row("book", f"running {path.stem}", seconds, "its limit", limit, "s", 1))
    found.append(Row("book", "running all notebooks", total, "the limit", execute.BOOK_LIMIT, "s", 1))
    if build.build():
        raise RuntimeError("the book was not built: see the warnings above")
    start = time.monotonic()
    build.build()
    return [*found, Row("book", "building the pages again", time.monotonic() - start, "the limit", WARM_BUILD, "s", 1)]
