"""An explorer of a chapter, shown on another page."""

import json

import pytest

from scalebook.book import notebooks, shown
from scalebook.book.stills import compiled


def chapter(name):
    return json.loads((notebooks.CHAPTERS / f"{name}.ipynb").read_text(encoding="utf-8"))


def test_the_figure_is_the_chapters_own_with_its_still_picture():
    html, pictures = shown.figure(chapter("04_pipeline_parallelism"), "gantt", "_images/")
    [file] = pictures
    assert f'src="_images/{file}"' in html
    assert pictures[file].startswith(b"\x89PNG")
    outputs = [output for cell in chapter("04_pipeline_parallelism")["cells"] for output in cell.get("outputs", ())]
    texts = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]
    stored = [text for text in texts if 'id="explorer-gantt"' in text]
    marker = 'class="explorer-spec">'
    assert [compiled(text).partition(marker)[2] for text in stored] == [html.partition(marker)[2]]


def test_a_name_that_is_no_explorer_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match=r"name = 'gant' is not allowed.*gantt"):
        shown.figure(chapter("04_pipeline_parallelism"), "gant", "")
