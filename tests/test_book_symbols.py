"""The notation page's list of symbols: no chapter uses another, and no symbol has two meanings in a chapter."""

import pytest

from scalebook.book import cells, notebooks, symbols

CHAPTERS = notebooks.chapters()


def prose(path):
    return [(cell["id"], cells.text_of(cell)) for cell in cells.read(path) if cell["cell_type"] == "markdown"]


def number(path):
    return int(path.name[:2])


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_uses_no_symbol_that_is_not_registered_for_it(path):
    known = symbols.registered(number(path))
    assert {identity: found for identity, text in prose(path) if (found := symbols.unknown(text, known))} == {}


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_symbol_that_is_registered_for_prose_stands_in_it(path):
    def parts(use):
        yield from (use.whole, use.base)
        for index in symbols.read(use.subscript):
            yield from parts(index)

    found = {part for _, text in prose(path) for use in symbols.used(text) for part in parts(use)}
    listed = [symbols.key(latex) for latex, *_ in symbols.entries(number(path))]
    assert None not in listed
    assert [name for name in listed if name not in found] == []
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_no_dollar_stands_outside_of_mathematics(path):
    assert [identity for identity, text in prose(path) if "$" in symbols.without_mathematics(text)] == []


@pytest.mark.parametrize(("text", "found"), [
    (r"$x_{ij}$ and $$\sum_{k=1}^{K} y_k$$", ["x", "i", "j", "k", "K", "y"]),
    (r"$\frac{T_{\text{new}}}{T}$", [r"T_{\text{new}}", "T"]),
    (r"$\mathrm{softmax}(\hat W x)$", [r"\mathrm{softmax}", r"\hat{W}", "x"]),
    (r"$A'$, $A^\top$, $\overline{|x|}$", ["A'", "A", "x"]),
    ("\\begin{align}\na &= b \\\\[2pt] c\n\\end{align}", ["a", "b", "c"]),
    (r"`$not$`, \$5 and 5\$, $\text{words only}$", []),
    ("```python\n$shell\n```\n$z$", ["z"]),
    (r"$n_{\mathrm{all\text{-}reduce}}$", [r"n_{\text{all\text{-}reduce}}"]),
])
def test_a_symbol_is_found_wherever_it_stands(text, found):
    flat = []

    def walk(use):
        if use.subscript and r"\text" in use.subscript:
            flat.append(use.whole)
            return
        flat.append(use.base)
        for index in symbols.read(use.subscript):
            walk(index)

    for use in symbols.used(text):
        walk(use)
    assert list(dict.fromkeys(flat)) == found


def test_a_subscript_is_an_index_unless_the_whole_is_registered():
    assert symbols.unknown("$b_w + h_i$", {"b_{w}": 1, "h": 1, "i": 1}) == []
    assert symbols.unknown("$b_w$", {"b": 1}) == ["w"]
    assert symbols.unknown("$b_{max}$", {"b": 1, "m": 1, "a": 1, "x": 1}) == []
    assert symbols.unknown(r"$b_{\max}$", {"b": 1}) == []
    assert symbols.unknown(r"$b_{\text{max}}$", {"b": 1}) == [r"b_{\text{max}}"]


def test_a_second_meaning_in_a_chapter_is_refused():
    registry = {"4": {"modules": ["pipeline"], "symbols": [["P", "power", "W"]]}}
    with pytest.raises(ValueError, match=r"chapter 4: P means both 'pipeline stages, one a device' \(count\)"):
        symbols.registered(4, registry)


def test_the_table_of_letters_has_each_letter_that_means_two_things():
    tabled = {symbols.key(meanings[0][0].latex) for meanings in symbols.letters()}
    meanings = {}
    for chapter in symbols.numbers():
        for name, found in symbols.registered(chapter).items():
            meanings.setdefault(name, set()).add(found.meaning)
    assert "s" in tabled
    assert {"d_{h}", "\\omega"}.isdisjoint(tabled)
    assert tabled <= {name for name, several in meanings.items() if len(several) > 1}
