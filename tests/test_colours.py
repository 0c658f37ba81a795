"""The colours of the book: seen on both pages, one for each idea of a chapter."""

import pytest

from scalebook import colours

PAGES = {"light": colours.LIGHT_PAGE, "dark": colours.DARK_PAGE}
CHAPTERS = {"pipelines": ("FORWARD", "BACKWARD", "WEIGHT", "IDLE"),
            "mixtures of experts": ("ACTIVE", "RESTING", "SHARED", "DROPPED"),
            "quantization": ("RTN", "GPTQ", "AWQ", "FULL_PRECISION"),
            "collectives": ("ALL_REDUCE", "ALL_GATHER", "BROADCAST", "POINT_TO_POINT"),
            "tensor parallelism": ("COLUMN", "ROW", "MESSAGE", "REPLICATED")}
IDEAS = [name for names in CHAPTERS.values() for name in names]


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
