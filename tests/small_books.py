"""Books of a few pages that a test builds in seconds, with what every book needs taken from the real one."""

import shutil

from scalebook.book import build

FILES = ("_config.yml", "references.bib", "requirements-book.txt", "figures/logo.svg")


def begun(folder, chapter):
    """Put into a folder what a book needs but its pages; its contents are an index and one chapter. Return the folder.

    `chapter` is the name of the chapter's file, without its ending.
    """
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(build.ROOT / name, folder / name)
    (folder / "_toc.yml").write_text(f"format: jb-book\nroot: index\nchapters:\n  - file: {chapter}\n")
    (folder / chapter).parent.mkdir(exist_ok=True)
    return folder
