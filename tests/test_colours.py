"""The colours of the book: seen on both pages, one for each idea of a chapter, told apart by all, equal everywhere."""

import itertools

import numpy as np
import pytest

from scalebook import colours
from scalebook.book import look
from scalebook.charts.mesh import isometric
from scalebook.charts.zero import parts

PAGES = {"light": colours.LIGHT_PAGE, "dark": colours.DARK_PAGE}
# What stands in several chapters has colours that nothing else has.
EVERYWHERE = {"axes": ("TP", "CP", "EP", "DP", "PP"), "states": ("PARAMETER", "GRADIENT", "OPTIMIZER"),
              "passes": ("FORWARD", "BACKWARD", "WEIGHT")}
CHAPTERS = {**EVERYWHERE, "pipelines": ("FORWARD", "BACKWARD", "WEIGHT", "IDLE"),
            "mixtures of experts": ("ACTIVE", "RESTING", "SHARED", "DROPPED"),
            "quantization": ("RTN", "GPTQ", "AWQ", "FULL_PRECISION"),
            "collectives": ("ALL_REDUCE", "ALL_GATHER", "BROADCAST", "POINT_TO_POINT"),
            "tensor parallelism": ("COLUMN", "ROW", "MESSAGE", "REPLICATED")}
IDEAS = list(dict.fromkeys(name for names in CHAPTERS.values() for name in names))


def colour_names():
    return {name for name, value in vars(colours).items() if name.isupper() and isinstance(value, str)}


def test_every_colour_is_an_idea_of_a_chapter_or_a_page():
    assert colour_names() == {*IDEAS, "LIGHT_PAGE", "DARK_PAGE"}


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", [*IDEAS, *(f"COMPARED[{i}]" for i in range(len(colours.COMPARED)))])
def test_a_colour_has_a_contrast_of_three_to_one_on_each_page(name, page):
    idea, _, place = name.partition("[")
    colour = getattr(colours, idea)
    assert colours.contrast(colour[int(place[:-1])] if place else colour, PAGES[page]) >= 3


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_ideas_of_a_chapter_and_what_it_compares_have_different_colours(chapter):
    own = [getattr(colours, name) for name in CHAPTERS[chapter]]
    both = [*own, *colours.COMPARED[:2]]
    assert len(set(both)) == len(both)


def test_what_stands_in_several_chapters_has_colours_of_its_own():
    everywhere = [getattr(colours, name) for names in EVERYWHERE.values() for name in names]
    assert len(set(everywhere)) == len(everywhere)


# How light of the three primaries reaches people who lack one kind of cone: Machado, Oliveira and Fernandes, "A
# Physiologically-based Model for Simulation of Color Vision Deficiency" (2009), severity 1.0.
SIGHT = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(colour, sight):
    """A colour in CIE L*a*b* (D65), as someone with this sight sees it."""
    channels = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    light = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    light = np.clip(np.array(sight) @ light, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ light
    x, y, z = np.cbrt(xyz / (0.9505, 1, 1.089))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(("family", "least"), [("axes", 20), ("states", 50)])
def test_axes_and_states_are_told_apart_whatever_cones_one_has(family, least, sight):
    seen = [lab(getattr(colours, name), SIGHT[sight]) for name in EVERYWHERE[family]]
    assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)) > least


def test_charts_and_style_sheet_take_the_same_colours():
    assert isometric.AXES == {"tp": colours.TP, "dp": colours.DP, "pp": colours.PP}
    assert parts.PARTS == {parts.WEIGHTS: colours.PARAMETER, parts.GRADIENTS: colours.GRADIENT,
                           parts.OPTIMIZER: colours.OPTIMIZER}
    sheet = look.stylesheet()
    for name in IDEAS:
        assert f"--idea-{name.lower().replace('_', '-')}: {getattr(colours, name)};" in sheet
