"""The page of exercises has all of them, says how long each takes, and which are checked."""

import json
import re

import pytest

from scalebook.book import cells, exercise_list, notebooks

CHAPTERS = exercise_list.of_all_chapters()
ALL = [exercise for found in CHAPTERS.values() for exercise in found]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_no_exercise_of_a_chapter_is_left_out(path):
    everything = path.read_text(encoding="utf-8")
    assert len(CHAPTERS[path]) == len(re.findall(r"\{exercise(?:-start)?\}", everything)) >= 3
    assert {exercise.label for exercise in CHAPTERS[path]} == set(
        re.findall(r"\{solution-start\} ([\w-]+)", everything))
    assert sum(exercise.checked for exercise in CHAPTERS[path]) == everything.count('"exercises.check(') >= 2


def test_exercises_are_numbered_through_the_book():
    assert [exercise.number for exercise in ALL] == list(range(1, len(ALL) + 1))
    assert len({exercise.label for exercise in ALL}) == len(ALL)


def test_each_chapter_has_a_short_and_a_long_one_but_for_the_page_before_the_chapters():
    for path, found in CHAPTERS.items():
        times = [exercise.time for exercise in found]
        assert "One line" in times
        assert "Half an hour" in times or path.name.startswith("00")


def test_every_exercise_asks_something_and_its_mathematics_is_whole():
    for exercise in ALL:
        assert exercise.question.count("$") % 2 == 0
        assert exercise.question[-1] in ".?)"
        assert exercise.title[0].isupper()


def test_the_time_is_the_titles(tmp_path):
    def written(title):
        return {"cell_type": "markdown", "id": "x", "metadata": {},
                "source": f"````{{exercise}} {title}\n:label: ex-a-b\n\nSee eq. 4 of it. How many?\n````"}

    answer = {"cell_type": "code", "id": "y", "metadata": {}, "source": "exercises.check(None, 1, wrong=[])"}
    path = tmp_path / "07_x.ipynb"
    for title, time, rest in (("One line", "One line", "One line"), ("By hand", "Some minutes", "By hand"),
                              ("Ten minutes: go", "Ten minutes", "Go"), ("Half an hour: cut", "Half an hour", "Cut")):
        path.write_text(json.dumps({"cells": [written(title), answer], "title": title}))
        [found] = exercise_list.exercises(path)
        assert (found.time, found.title, found.checked) == (time, rest, True)
        assert found.question == "See eq. 4 of it. How many?"


def test_the_chapters_are_those_of_the_book():
    assert list(CHAPTERS) == notebooks.chapters()
    assert all(cells.find(exercise.chapter, exercise.cell) for exercise in ALL)
