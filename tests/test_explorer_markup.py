"""No text that an explorer, a prediction or a table is given reaches the page as markup, whatever it is."""

import json
from html.parser import HTMLParser

import ipywidgets as widgets
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scalebook.explorer import explore, predict
from scalebook.published import Table

PIECES = st.sampled_from(["<", ">", "</script>", "<script>", "<!--", "-->", "]]>", '"', "'", "&", "&lt;", "&#60;", "</",
                          "<img src=x onerror=y>", "javascript:", "\u2028", "\0", "a", " ", "é", "\ud7ff"])
# What is refused besides: a dollar or a backslash starts mathematics.
TEXTS = st.lists(PIECES | st.characters(exclude_categories=["Cs"], exclude_characters="$\\"), min_size=1,
                 max_size=8).map("".join).filter(str.strip)


EVIL = "</script><script>a()</script><img src=x onerror='a()'>\"&lt;-->"


class Parsed(HTMLParser):
    """The tags with their attributes, and all texts outside scripts, as a browser's parser sees them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.data, self._script = [], [], [], False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._script = tag == "script"

    def handle_endtag(self, tag):
        self._script = False

    def handle_data(self, data):
        (self.data if self._script else self.texts).append(data)

    def handle_comment(self, data):
        self.tags.append(("comment", data))

    def names(self):
        return [tag for tag, _ in self.tags]


def explorer(caption, label, option, datum):
    chart = {"data": {"values": [{"x": 1, "name": datum}]}, "mark": "bar",
             "transform": [{"calculate": "datum.x * P", "as": "y"}],
             "encoding": {"y": {"field": "name", "type": "nominal"}, "x": {"field": "y", "type": "quantitative"}}}
    return explore(chart, caption=caption, alt="A bar.", name="one",
                   P=widgets.SelectionSlider(options=[(option, 1), ("two", 2)], description=label))


PLAIN = Parsed(explorer("caption", "label", "option", "datum").html).names()


@settings(deadline=None)
@given(TEXTS, TEXTS, TEXTS, TEXTS)
@example(EVIL, EVIL, EVIL, EVIL)
def test_an_explorer_has_the_same_tags_whatever_its_texts_are(caption, label, option, datum):
    made = explorer(caption, label, option, datum)
    found = Parsed(made.html)
    assert found.names() == PLAIN
    assert json.loads("".join(found.data)) == json.loads(json.dumps(made.spec))
    by_tag = {tag: attributes for tag, attributes in found.tags if tag == "input"}
    assert json.loads(by_tag["input"]["data-labels"]) == [option, "two"]


@settings(deadline=None)
@given(st.lists(TEXTS, min_size=3, max_size=4, unique_by=str.strip), TEXTS)
@example([EVIL, f"{EVIL}2", f"{EVIL}3"], EVIL)
def test_a_prediction_has_the_same_tags_whatever_its_texts_are(words, question):
    reasons = [f"{number}: {word}" for number, word in enumerate(words)]
    try:
        asked = predict(question, answers=dict(zip(words, reasons, strict=True)), right=words[0], name="one")
    except ValueError:  # two that read alike
        return
    plain = predict("q", answers={f"a{n}": f"b{n}" for n in range(len(words))}, right="a0", name="one")
    assert Parsed(asked.html).names() == Parsed(plain.html).names()


@settings(deadline=None)
@given(TEXTS, TEXTS, TEXTS)
@example(EVIL, EVIL, EVIL)
def test_a_published_table_has_the_same_tags_whatever_its_texts_are(source, column, cell):
    table = Table("one", source, (column,), ({column: cell},))
    plain = Table("one", "source", ("column",), ({"column": "cell"},))
    assert Parsed(table._repr_html_()).names() == Parsed(plain._repr_html_()).names()
