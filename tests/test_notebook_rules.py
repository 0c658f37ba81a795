"""Every chapter keeps every rule; and every rule, shown a chapter that breaks it, says so."""

import re
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest

from scalebook.book import listings, notebooks
from tests import sample_chapter as sample
from tests.notebook_rules import RULES, outputs, predictions, sources, structure

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = notebooks.chapters()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_keeps_the_rule(path, rule):
    assert rule(notebooks.read(path), path.stem) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_is_valid_and_written_as_the_command_writes_it(path):
    assert notebooks.text_of(notebooks.read(path)) == path.read_text(encoding="utf-8")


def test_every_list_of_measured_cells_belongs_to_a_chapter():
    assert set(sources.measured_cells()) <= {path.stem for path in CHAPTERS}


def test_the_sample_chapter_keeps_every_rule():
    chapter = sample.chapter()
    nbformat.validate(chapter)
    assert {rule.__name__: found for rule in RULES if (found := rule(chapter))} == {}


# What each rule refuses: (rule, what to do to the sample chapter, what the offence says). ---------------------------


def printed(written, name="stdout"):
    def change(chapter):
        cell_named(chapter, "validate-bubble").outputs = [sample.stream(written, name)]
    return change


def html(written):
    def change(chapter):
        cell_named(chapter, "validate-bubble").outputs = [sample.shown(text__html=written)]
    return change


def source(identity, written):
    def change(chapter):
        cell_named(chapter, identity).source = written
    return change


def metadata(identity, **values):
    def change(chapter):
        cell_named(chapter, identity).metadata.update(values)
    return change


def without(identity):
    def change(chapter):
        chapter.cells = [cell for cell in chapter.cells if cell["id"] != identity]
    return change


def renamed(old, new):
    def change(chapter):
        cell_named(chapter, old)["id"] = new
    return change


def do(text):
    """A change written as a statement about `c`, the chapter, and `by`, which finds a cell."""
    def change(chapter):
        exec(text, {"c": chapter, "by": lambda identity: cell_named(chapter, identity), "sample": sample})
    return change


def choices(old, new):
    """Write the choices of the first prediction in another way."""
    def change(chapter):
        data = cell_named(chapter, "predict-one").outputs[0].data
        assert old in data["text/html"]
        data["text/html"] = data["text/html"].replace(old, new)
    return change


def cell_named(chapter, identity):
    return next(cell for cell in chapter.cells if cell["id"] == identity)


BAD = [
    (outputs.stores_nothing_that_changes, printed("<Timeline at 0x7f3a2c1b9d30>"), "an address"),
    (outputs.stores_nothing_that_changes, printed("read /tmp/abc.txt"), "a path"),
    (outputs.stores_nothing_that_changes, printed("in /home/jo/x.py"), "a path"),
    (outputs.stores_nothing_that_changes, html("<p>lib/site-packages/torch</p>"), "a path"),
    (outputs.stores_nothing_that_changes, printed("worker pid 4711 ended"), "a process number"),
    (outputs.stores_nothing_that_changes, printed("at 09:41:07"), "a clock time"),
    (outputs.stores_nothing_that_changes, printed("on 2026-11-30"), "a date"),
    (outputs.stores_nothing_that_changes, printed("on Nov 30, 2026"), "a date"),
    (outputs.stores_no_stderr_and_no_error, printed("careful", "stderr"), "stores stderr"),
    (outputs.stores_no_stderr_and_no_error,
     do("by('setup').outputs = [sample.v4.new_output('error', ename='ValueError', evalue='', traceback=[])]"),
     "stores an error: ValueError"),
    (outputs.prints_at_most_four_digits, printed("share 0.21875"), "'0.21875'"),
    (outputs.prints_at_most_four_digits, printed("tensor([1.2345, 2.0])"), "'1.2345'"),
    (outputs.prints_at_most_four_digits, printed("12,288.5 bytes"), "'12,288.5'"),
    (outputs.prints_at_most_four_digits, printed("error 1.23456e-07"), "'1.23456e-07'"),
    (outputs.prints_at_most_four_digits, html("<td>0.21875</td>"), "'0.21875'"),
    (outputs.stores_no_widget_state, do("c.metadata['widgets'] = {}"), "metadata has widgets"),
    (outputs.stores_no_widget_state,
     do("by('setup').outputs = [sample.v4.new_output('display_data', "
        "{'application/vnd.jupyter.widget-view+json': {}})]"), "the view of a widget"),
    (outputs.is_executed_in_order, do("by('derive-check').execution_count = None"), "execution_count is None"),
    (outputs.is_executed_in_order, do("by('derive-check').execution_count = 7"), "is 7, not 2"),
    (outputs.is_executed_in_order, source("derive-check", " "), "is empty"),
    (outputs.metadata_is_normalised, do("c.metadata.language_info['version'] = '3.11.7'"), "language_info"),
    (outputs.metadata_is_normalised, metadata("setup", execution={"x": "2026"}), "'execution'"),
    (outputs.images_have_alt_text, do("by('validate-figure').metadata.pop('mystnb')"), "without mystnb.image.alt"),
    (outputs.images_have_alt_text, metadata("validate-figure", mystnb={"image": {"alt": "A plot"}}), "mystnb"),
    (outputs.images_have_alt_text, do("by('validate-figure').outputs *= 2"), "shows 2 pictures"),
    (outputs.images_have_alt_text,
     do("by('explore-one').outputs[0].data['text/plain'] = '<IPython.core.display.Image object>'"), "still has no alt"),
    (outputs.images_have_alt_text, html('<img src="a.png">'), "an <img>"),
    (outputs.images_have_alt_text, source("trap", "## The trap\n\n![](a.png)"), "has no alt text"),
    (outputs.images_have_alt_text, source("trap", "## The trap\n\n```{figure} a.png\nx\n```"), "no :alt:"),
    (sources.no_cell_ends_with_semicolon, source("derive-check", "ax.plot(x);"), "ends with `;`"),
    (sources.no_cell_ends_with_semicolon, source("derive-check", "ax.plot(x);  # quiet\n"), "ends with `;`"),
    (sources.ids_are_stable_names, renamed("setup", "3f8a1c2d"), "looks made up"),
    (sources.ids_are_stable_names, renamed("setup", "XQpj7MyzA1bc"), "is no name"),
    (sources.ids_are_stable_names, renamed("setup", "c81a02d4-5a7e-4f0e-9f1c-2b8f0e6a7d11"), "looks made up"),
    (sources.ids_are_stable_names, renamed("setup", "c1"), "is no name"),
    (sources.ids_are_stable_names, renamed("setup", "title"), "stands 2 times"),
    (sources.ids_are_stable_names, do("del by('setup')['id']"), "has no id"),
    (sources.no_process_tricks, source("setup", "%%writefile worker.py\nx = 1"), "%%writefile"),
    (sources.no_process_tricks, source("setup", "import torch.multiprocessing as mp"), "imports multiprocessing"),
    (sources.no_process_tricks, source("setup", "torch.multiprocessing.spawn(f)"), "starts processes"),
    (sources.no_process_tricks, source("setup", "mp.spawn(f)"), "starts processes"),
    (sources.no_internals_of_other_libraries,
     source("setup", "from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops"),
     "'_schedule_visualizer' is internal"),
    (sources.no_internals_of_other_libraries, source("setup", "import torch._dynamo"), "'_dynamo'"),
    (sources.no_internals_of_other_libraries, source("setup", "model._buffers"), "'_buffers'"),
    (sources.no_text_that_differs_between_pythons, source("setup", "from pydoc_data import topics"), "pydoc_data"),
    (sources.setup_installs_nothing_importable,
     source("setup", "if not importlib.util.find_spec('a'):\n    %pip install a torch"), "installs torch"),
    (sources.setup_installs_nothing_importable,
     source("setup", "packages = ['numpy>=2']\nif not find_spec('a'):\n    !pip install {packages}"), "installs numpy"),
    (sources.setup_installs_nothing_importable, source("setup", "%pip install altair"), "without asking"),
    (sources.setup_installs_nothing_importable,
     source("derive-check", "if find_spec('altair') is None:\n    %pip install altair"), "only the first code cell"),
    (sources.widgets_are_plain, source("setup", "widgets.Play(value=1)"), "uses Play"),
    (sources.widgets_are_plain, source("setup", "Button(icon='check')"), "icon="),
    (sources.widgets_are_plain, source("setup", "IntSlider(description='$P$')"), "`$` in the description"),
    (sources.widgets_are_plain, source("setup", "Dropdown(options=[('$a$', 1)])"), "`$` in the options"),
    (sources.interact_is_never_the_only_view, source("derive-check", "interact(draw, P=(1, 8))"), "the only view"),
    (sources.comments_speak_of_the_book_alone, source("setup", "x = 1  # see issue 2"), "'issue 2'"),
    (sources.comments_speak_of_the_book_alone, source("setup", "x = 1  # TODO"), "'TODO'"),
    (sources.comments_speak_of_the_book_alone, source("trap", "## The trap\n<!-- by an agent -->"), "'agent'"),
    (sources.comments_speak_of_the_book_alone, source("trap", "## The trap\nSee shared/design.md."), "the text says"),
    (sources.ignored_outputs_are_measured,
     do("by('setup').metadata['tags'] = ['nbval-ignore-output']"), "asserts nothing"),
    (sources.ignored_outputs_are_measured,
     do("by('derive-check').metadata['tags'] = ['nbval-ignore-output']"), "has no reason"),
    (sources.ignored_outputs_are_measured, metadata("setup", tags=["nbval-skip"]), "the tag 'nbval-skip'"),
    (sources.ignored_outputs_are_measured, metadata("setup", tags=["raises-exception"]), "raises-exception"),
    (sources.ignored_outputs_are_measured, source("setup", "# NBVAL_IGNORE_OUTPUT\nx = 1"), "the comment"),
    (sources.listings_are_short, source("build-bubble", "def bubble():\n" + "    x = 1\n" * 41), "has 42 lines"),
    (structure.sections_stand_in_order, without("history"), "section 'History' is missing"),
    (structure.sections_stand_in_order, source("trap", "## The belief"), "'The belief' is not one of"),
    (structure.sections_stand_in_order,
     do("by('build').source, by('validate').source = '## Validate', '## Build'"), "the order is"),
    (structure.sections_stand_in_order, source("title", "A chapter"), "0 level-1 headings"),
    (structure.explorers_have_prediction_and_notice, without("explore-two"), "there are 2 explorers"),
    (structure.explorers_have_prediction_and_notice, source("explore", "## Explore"), 'no "Before you move it"'),
    (structure.explorers_have_prediction_and_notice,
     source("notice-one", "What to notice: it falls."), 'explore-two: no "Before you move it"'),
    (structure.explorers_have_prediction_and_notice,
     source("notice-three", "It falls."), 'explore-three: no "What to notice"'),
    (structure.explorers_have_prediction_and_notice,
     source("notice-one", "Before you move it: x. What to notice: y."), 'explore-one: no "What to notice"'),
    (structure.explorers_have_prediction_and_notice,
     do("by('explore-two').outputs = by('explore-one').outputs"), "stands twice"),
    (predictions.explorers_have_a_prediction, without("predict-two"),
     "explore-two: no prediction 'two' before the explorer of that name"),
    (predictions.explorers_have_a_prediction,
     do("c.cells.append(c.cells.pop([x['id'] for x in c.cells].index('predict-one')))"),
     "explore-one: no prediction 'one' before"),
    (predictions.predictions_are_computed_and_hidden,
     source("predict-one", "predict('?', name='one', answers=answers, right=0.5 + 1)"), "right is written down"),
    (predictions.predictions_are_computed_and_hidden,
     source("predict-one", "predict('?', name='one', answers=answers)"), "right is written down"),
    (predictions.predictions_are_computed_and_hidden, source("predict-one", "1"), "calls predict 0 times and shows 1"),
    (predictions.predictions_are_computed_and_hidden, do("by('predict-one').outputs = []"), "and shows 0 predictions"),
    (predictions.predictions_are_computed_and_hidden, choices("true", "false"), "0 choices are right and 3 wrong"),
    (predictions.predictions_are_computed_and_hidden, choices("false", "true"), "3 choices are right and 0 wrong"),
    (predictions.predictions_are_computed_and_hidden, choices(" Too near.", ""), "1 choices are right and 1 wrong"),
    (predictions.predictions_are_computed_and_hidden, choices("Right.", "Not quite."), "a verdict contradicts its key"),
    (predictions.predictions_are_computed_and_hidden, renamed("predict-one", "asked"), "must begin with 'predict-'"),
    (predictions.predictions_are_computed_and_hidden, metadata("predict-one", tags=[]), "metadata.tags must be"),
    (predictions.predictions_are_computed_and_hidden,
     do("del by('predict-one').metadata['cellView']"), "metadata.cellView must be 'form'"),
    (predictions.predictions_are_computed_and_hidden,
     do("by('predict-two').outputs = by('predict-one').outputs"), "the prediction 'one' stands twice"),
    (structure.exercises_have_solutions, without("exercise-6"), "there are 5 labelled exercises"),
    (structure.exercises_have_solutions, without("solution-3-start"), "exercise 'ex-3' has no solution"),
    (structure.exercises_have_solutions, without("solution-3-end"), "starts inside the one of 'ex-3'"),
    (structure.exercises_have_solutions, without("solution-3"), "'ex-3' has no code cell"),
    (structure.exercises_have_solutions,
     source("solution-3-start", "```{solution-start} ex-3\n```"), "is not folded"),
    (structure.exercises_have_solutions, source("check-2", "check(None)"), "1 cells check an answer"),
    (structure.code_is_not_nested, source("trap", "## The trap\n\n```{code-cell}\nx = 1\n```"), "code-cell"),
    (structure.code_is_not_nested, source("trap", "## The trap\n\n:::{admonition} A\nx"), "does not close it"),
    (structure.derivation_and_validation_assert, source("derive-check", "difference = 0"), "'Derive' has no assert"),
    (structure.derivation_and_validation_assert, source("validate-bubble", "print(3)"), "'Validate' has no assert"),
]


@pytest.mark.parametrize(("rule", "change", "says"), BAD,
                         ids=[f"{rule.__name__}-{number}" for number, (rule, _, _) in enumerate(BAD)])
def test_a_rule_catches_what_breaks_it(rule, change, says):
    chapter = deepcopy(sample.chapter())
    change(chapter)
    offences = rule(chapter)
    assert any(says in offence for offence in offences), offences


def test_every_rule_is_proven_on_something_bad():
    assert {rule for rule, _, _ in BAD} == set(RULES)


@pytest.mark.parametrize(("rule", "change"), [
    (outputs.prints_at_most_four_digits,
     printed("torch 2.13.0, arXiv:2104.04473, 46702792704, 1.23e-07, 0.002500, 1.2.3")),
    (outputs.prints_at_most_four_digits, html('<svg><path d="M0.123456"/></svg><p style="width: 12.34567px">3.5</p>')),
    (outputs.stores_nothing_that_changes, printed("0xFF, 4:1, s/h, https://x.org/home/a, process 3, 12:30, 24/7")),
    (sources.no_cell_ends_with_semicolon, source("setup", "x = 'a;'  # b;\ny = 1; z = 2")),
    (sources.no_internals_of_other_libraries,
     source("setup", "from scalebook.pipeline import _order\n_ = x.__name__\n"
                     "class A:\n    def f(self):\n        return self._x")),
    (sources.setup_installs_nothing_importable,
     source("setup", "import numpy\nif find_spec('torch') is None:\n    raise ImportError('needs torch')\n"
                     "try:\n    import anywidget\nexcept ImportError:\n    %pip install anywidget==0.9.21")),
    (sources.interact_is_never_the_only_view,
     do("c.cells.insert([x['id'] for x in c.cells].index('explore-one'), sample.code('python-view', 'interact(f)'))")),
    (structure.code_is_not_nested, source("trap", "## The trap\n\n````{note}\n```python\n:::{x}\n```\n````")),
    (outputs.images_have_alt_text, source("trap", "## The trap\n\n![A cluster of eight by eight GPUs](a.png)")),
])
def test_a_rule_lets_pass_what_keeps_it(rule, change):
    chapter = deepcopy(sample.chapter())
    change(chapter)
    assert rule(chapter) == []


def test_a_measured_cell_with_an_assert_and_a_reason_passes_and_an_unused_entry_does_not():
    chapter = sample.chapter()
    cell_named(chapter, "derive-check").metadata["tags"] = ["nbval-ignore-output"]
    rule = sources.ignored_outputs_are_measured
    listed = {"01_x": {"derive-check": "seconds differ at every run"}}
    assert rule(chapter, "01_x", listed) == []
    assert "has no reason" in rule(chapter, "02_y", listed)[0]
    listed["01_x"]["gone"] = "was measured"
    assert rule(chapter, "01_x", listed) == ["measured_cells.toml lists 01_x.gone, which no tagged cell is"]


def test_chapter_4_needs_four_explorers():
    assert structure.explorers_have_prediction_and_notice(sample.chapter(), "04_pipeline_parallelism") == [
        "there are 3 explorers; a chapter has at least 4"]


# Rules of the repository ---------------------------------------------------------------------------------------------


def test_no_static_folder_stands_at_the_root():
    assert not (ROOT / "_static").exists(), "Jupyter Book loads every script under it on every page, twice"


def pins_that_are_not_exact(text):
    lines = [line.partition(" #")[0].strip() for line in text.splitlines()]
    wanted = re.compile(r"[A-Za-z0-9_.-]+(\[[\w,-]+\])?==[\w.+!-]+( --hash=sha256:[0-9a-f]{64})*(\s*;.*)?$")
    return [line for line in lines if line and not line.startswith(("#", "-r ")) and not wanted.match(line)]


@pytest.mark.parametrize("path", sorted(ROOT.glob("requirements*.txt")), ids=lambda path: path.name)
def test_requirements_are_pinned_exactly(path):
    assert pins_that_are_not_exact(path.read_text(encoding="utf-8")) == []


def test_an_inexact_pin_is_caught():
    assert pins_that_are_not_exact("a==1\n-r b.txt\n# c\nd>=2\ne\nf==1.*\n") == ["d>=2", "e", "f==1.*"]


def test_jupyter_book_is_the_last_of_version_1():
    texts = [path.read_text(encoding="utf-8").splitlines() for path in ROOT.glob("requirements*.txt")]
    assert "jupyter-book==1.0.4.post1" in [line.strip() for lines in texts for line in lines]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_listings_need_nothing_that_the_chapter_lacks(path):
    assert listings.missing_names(notebooks.read(path)) == []
