"""The look of a page: pictures for the dark page, tables on a phone, and the colours of what is drawn."""

import ast
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scalebook import colours
from scalebook.book import night, pictures, tables

ROOT = Path(__file__).resolve().parents[1]
DRAWINGS = sorted((ROOT / "figures").glob("*.svg"))
IDEAS = {value for name, value in vars(colours).items() if name.isupper() and isinstance(value, str)}
IDEAS -= {colours.LIGHT_PAGE, colours.DARK_PAGE}


def png(pixels, **options):
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "png", **options)
    return written.getvalue()


def rgb(colour):
    return [int(colour[i:i + 2], 16) for i in (1, 3, 5)]


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)
def test_a_drawing_keeps_the_ideas_colours_in_the_dark(path):
    day, dark = (re.sub(r"<text [^>]*>", "", text) for text in (
        path.read_text(encoding="utf-8"), pictures.twin(path).decode()))
    for colour in IDEAS:
        assert (colour in day) == (colour in dark) or path.stem == "cluster_light", colour


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)
def test_the_words_of_a_drawing_are_read_in_the_dark(path):
    dark = pictures.twin(path).decode()
    inks = set(re.findall(r"<text [^>]*fill: (#[0-9a-f]{6})", dark)) | {night.INK}
    # White words stand on coloured grounds.
    assert not {ink for ink in inks - {"#ffffff"} if colours.contrast(ink, colours.DARK_PAGE) < 4.5}


@pytest.mark.parametrize("channels", [3, 4])
def test_a_png_is_read_and_written_as_pillow_does(channels):
    drawn = np.random.default_rng(0).integers(0, 256, (37, 53, channels), dtype=np.uint8)
    drawn[8:20] = np.linspace(0, 255, 53, dtype=np.uint8)[:, None]  # a slope: rows of several filters
    assert (night.read_png(png(drawn)) == drawn).all()
    assert (np.array(Image.open(io.BytesIO(night.write_png(drawn[..., :3])))) == drawn[..., :3]).all()


@pytest.mark.parametrize("pixels", [np.zeros((2, 2), np.uint8), np.zeros((2, 2), bool)])
def test_another_kind_of_png_is_refused_by_name(pixels):
    with pytest.raises(ValueError, match=r"content = .* is not allowed"):
        night.read_png(png(pixels))


def test_paper_is_the_dark_page_and_ink_is_light_and_ideas_keep_their_colour():
    kept = sorted(IDEAS - {colours.IDLE})
    drawn = np.array([[rgb(colour) for colour in ("#ffffff", "#000000", *kept)]], np.uint8)
    paper, ink, *ideas = night.read_png(night.dark_png(png(drawn)))[0].astype(int)
    assert paper.tolist() == rgb(colours.DARK_PAGE)
    assert ink.tolist() == rgb(night.INK)
    for colour, seen in zip(kept, ideas, strict=True):
        assert abs(seen - rgb(colour)).max() <= 60, colour
        assert np.argmax(seen) == np.argmax(rgb(colour)), colour


def test_a_picture_has_one_twin_and_the_page_names_both():
    html, twins = pictures.twinned('<p><img class="a" src="../_images/x.png"/></p>', lambda name: Path("y.png"))
    assert twins == {"x-dark.png": Path("y.png")}
    assert re.findall(r'class="(.*?)" src="(.*?)"', html) == [
        ("by-day a", "../_images/x.png"), ("by-night a", "../_images/x-dark.png")]


@pytest.mark.parametrize(("cells", "stacked"), [(["1", "a few words", "b"], False), (["1", "word " * 40, "b"], True),
                                                (["word " * 40, "b"], False)])
def test_a_table_of_sentences_has_its_headings_in_its_cells(cells, stacked):
    head = "".join(f"<th>H{i}</th>" for i in range(len(cells)))
    html = f"<table><thead><tr>{head}</tr></thead><tbody><tr>" + "".join(f"<td>{one}</td>" for one in cells)
    marked = tables.marked(html + "</tr></tbody></table>")
    assert ("stacked" in marked) == stacked
    assert re.findall(r'data-label="(.*?)"', marked) == ([f"H{i}" for i in range(len(cells))] if stacked else [])


def test_the_colours_of_the_passes_are_taken_by_charts_that_draw_passes_alone():
    takers = set()
    for path in (ROOT / "scalebook" / "charts").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) and (
                node.module == "scalebook.colours") else set()
            attribute = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (
                node.value.id == "colours") and node.attr
            if {*names, attribute} & {"FORWARD", "BACKWARD"}:
                takers.add(path.stem)
    assert takers == {"pipeline", "messages", "life"}
