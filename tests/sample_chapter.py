"""A small chapter that keeps every rule, for tests to break one rule at a time."""

from nbformat import v4

from scalebook.book import execute
from scalebook.explorer import predict
from tests.notebook_rules.predictions import HIDDEN

ALT = "A line that falls from 0.9 to 0.1 as the number of micro-batches grows."


def cell(kind, identity, source, **metadata):
    made = (v4.new_code_cell if kind == "code" else v4.new_markdown_cell)(source, metadata=metadata)
    made["id"] = identity
    return made


def code(identity, source, outputs=(), **metadata):
    made = cell("code", identity, source, **metadata)
    made.outputs = list(outputs)
    return made


def text(identity, source):
    return cell("markdown", identity, source)


def stream(written, name="stdout"):
    return v4.new_output("stream", name=name, text=written)


def shown(metadata=None, **data):
    return v4.new_output("display_data", data={kind.replace("__", "/"): value for kind, value in data.items()},
                         metadata=metadata or {})


def explorer(name):
    still = shown({"scalebook": {"still": f"explorer-{name}"}}, image__png="iVBORw0KGgo=", text__plain=ALT)
    data = '<script type="application/json" class="explorer-spec">{"a": 0.123456}</script>'
    figure = shown(text__html=f'<figure class="explorer" id="explorer-{name}">\n<figcaption>Bubble</figcaption>\n'
                              f"{data}\n</figure>")
    return code(f"explore-{name}", f"explore(chart_{name}, caption='Bubble', alt='{ALT}')", [still, figure])


def prediction(name):
    answers = {"a": "Too far.", "b": "That far.", "c": "Too near."}
    asked = predict("How long is it?", name=name, answers=answers, right="b")
    return code(f"predict-{name}", f"predict('How long?', name='{name}', answers=answers, right=longest('{name}'))",
                [shown(text__html=asked.html, text__plain=asked.text)], **HIDDEN)


def exercise(number):
    made = [text(f"exercise-{number}", f":::{{exercise}}\n:label: ex-{number}\nHow long is it?\n:::"),
            text(f"solution-{number}-start", f"```{{solution-start}} ex-{number}\n:class: dropdown\n```"),
            code(f"solution-{number}", f"answer_{number} = {number}\nprint(answer_{number})", [stream(f"{number}\n")]),
            text(f"solution-{number}-end", "```{solution-end}\n```")]
    if number <= 2:
        made.append(code(f"check-{number}", f"exercises.check({number}, 3, wrong=[(2, 'one more')])",
                         [stream("Right.\n")]))
    return made


def chapter():
    """A notebook that keeps every rule."""
    cells = [
        text("title", "# A chapter\n\nWhat it is about."),
        code("setup", "import importlib.util\n\nif importlib.util.find_spec('scalebook') is None:\n"
                      "    %pip install --quiet scalebook\n\nimport numpy as np"),
        text("question", "## The question\n\nHow long is it?"),
        text("derive", "## Derive: two measures\n\n$a = b$"),
        code("derive-check", "difference = 0\nassert difference == 0  # the two are one"),
        text("build", "## Build"),
        code("build-bubble", "def bubble(stages):\n    return stages - 1", listing="scalebook.example:bubble"),
        text("validate", "## Validate"),
        code("validate-bubble", "print(f'{bubble(4)} of 33.0, 0.2188')\nassert bubble(4) == 3",
             [stream("3 of 33.0, 0.2188\n")]),
        code("validate-figure", "_ = ax.plot(x)", [shown(image__png="iVBORw0KGgo=",
                                                        text__plain="<Figure size 640x480 with 1 Axes>")],
             mystnb={"image": {"alt": ALT}}),
        text("explore", "## Explore\n\n**Before you move it**: what happens at 1?"), prediction("one"), explorer("one"),
        text("notice-one", "**What to notice**: it falls.\n\n**Before you move it**: and now?"), prediction("two"),
        explorer("two"),
        text("notice-two", "**What to notice**: it falls.\n\n**Before you move it**: and here?"), prediction("three"),
        explorer("three"), text("notice-three", "**What to notice**: it falls."),
        text("trap", "## The trap"), text("wild", "## In the wild\n\n```python\n## no heading\n```"),
        text("history", "## History"), text("exercises", "## Exercises"),
    ]
    for number in range(1, 7):
        cells += exercise(number)
    cells.append(text("breath", "## In one breath"))
    made = v4.new_notebook(cells=cells)
    return execute.normalised(made)
