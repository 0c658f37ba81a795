r"""Which symbols the text of a chapter uses, and what each of them means.

`used(text)` reads the mathematics of a Markdown text and returns its identifiers: letters and Greek letters with their
decoration (\hat w), names in roman or calligraphic type (\mathrm{FFN}, \mathcal{L}), each with its subscript. A
subscript of words is part of the symbol (t_{\text{idle}}); one of other symbols can be (b_w) or can be an index (h_i),
which the registry tells: what is registered whole is a symbol, all else is a symbol with indices.

`registered(number)` returns what a chapter's symbols mean: the variables and results of its module of
`scalebook.formulas`, and the rest from symbols.toml. No symbol has two meanings in one chapter.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import scalebook.formulas

REGISTRY = Path(__file__).with_name("symbols.toml")
# Commands that print no symbol of ours: operators, relations, layout.
PLAIN = frozenset(re.findall(r"\w+", (
    "left right big Big bigl bigr Bigl Bigr biggl biggr frac tfrac dfrac sqrt sum prod int lim max min log ln exp "
    "sup inf le leq ge geq ne neq approx propto equiv sim in notin subset cup cap setminus times cdot cdots ldots dots "
    "vdots ddots pm mp to gets leftarrow rightarrow Rightarrow mapsto infty partial nabla odot oplus otimes circ "
    "quad qquad displaystyle lfloor rfloor lceil rceil langle rangle lVert rVert lvert rvert vert Vert mid mod "
    "bmod pmod binom tbinom top square middle limits nolimits not forall exists because therefore ast star prime "
    "deg tr underbrace overbrace hline pi"
)))
ACCENTS = {"hat", "bar", "tilde", "dot", "vec", "widehat", "widetilde", "overline", "underline"}
FONTS = {"mathrm", "mathcal", "mathbb", "mathbf", "mathit", "mathsf", "operatorname", "boldsymbol"}
WORDS = {"text", "textrm", "textit", "texttt"}
TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|[A-Za-z]|[{}_^']|\S")
LAYOUT = re.compile(r"\\(begin|end)\{\w+\*?\}|\\[,;:!> ]|\\\\(\[\w+\])?|&")
MATH = re.compile(r"\$\$(.+?)\$\$|(?<![\\$])\$(?![\s$])((?:[^$\\\n]|\\.|\n(?!\s*\n))+?)(?<!\s)\$(?![\d$])|"
                  r"\\begin\{(align\*?|equation\*?|gather\*?)\}(.+?)\\end\{\3\}", re.S)
CODE = re.compile(r"^(`{3,})\w[^\n]*\n.*?^\1|(?<!`)(`{1,2})(?!`)(?:(?!\2).)+?\2(?!`)", re.S | re.M)


@dataclass(frozen=True)
class Meaning:
    """What a symbol means in a chapter: how it is written, its unit, and its name in code where it has one."""

    latex: str
    meaning: str
    unit: str
    code: str = ""


@dataclass(frozen=True)
class Use:
    """One use of a symbol: its base and its subscript, both in the one way in which `used` writes them."""

    base: str
    subscript: str = ""

    @property
    def whole(self):
        """Base and subscript as one key."""
        return f"{self.base}_{{{self.subscript}}}" if self.subscript else self.base


def mathematics(text):
    r"""Return the pieces of mathematics in a Markdown text, code left out.

    >>> mathematics("Let $x$ be `$PATH`, and $$y = x^2 .$$")
    ['x', 'y = x^2 .']
    """
    return [found[1] or found[2] or found[4] for found in MATH.finditer(CODE.sub(" ", text))]


def without_mathematics(text):
    """Return a Markdown text without its mathematics and its code."""
    return MATH.sub(" ", CODE.sub(" ", text)).replace(r"\$", "")


def used(text):
    r"""Return the symbols of a Markdown text's mathematics, with their subscripts, each once, in order.

    >>> [use.whole for use in used(r"$\hat w = S\,(q - Z)$, $T_{\text{idle}} = b_w \log_2 R$")]
    ['\\hat{w}', 'S', 'q', 'Z', 'T_{\\text{idle}}', 'b_{w}', 'R']
    """
    found = {}
    for piece in mathematics(text):
        for use in read(piece):
            found.setdefault(use)
    return list(found)


def read(latex):
    r"""Return the symbols of one piece of LaTeX, in order, those inside of subscripts left out.

    >>> [use.whole for use in read(r"\mathcal{L} \ge \alpha_{\mathrm{max}} A'^2")]
    ['\\mathcal{L}', '\\alpha_{\\text{max}}', "A'"]
    """
    return list(_uses(TOKEN.findall(LAYOUT.sub(" ", latex))))


def _uses(tokens):
    at = 0
    while at < len(tokens):
        token = tokens[at]
        command = token[1:] if token.startswith("\\") else ""
        if command in WORDS:
            _, at = _argument(tokens, at + 1)
            continue
        base, at = _base(tokens, at)
        if base is None:
            continue
        subscript, above = "", []
        while at < len(tokens) and tokens[at] in "_^'":
            if tokens[at] == "'":
                base, at = base + "'", at + 1
                continue
            argument, end = _argument(tokens, at + 1)
            if tokens[at] == "_":
                subscript = _joined(argument)
            else:
                above = argument
            at = end
        yield Use(base, subscript)
        yield from _uses(above)


def _base(tokens, at):
    """The symbol that starts at a token, or None, and where to go on."""
    token = tokens[at]
    command = token[1:] if token.startswith("\\") else ""
    if command in FONTS:
        argument, at = _argument(tokens, at + 1)
        return rf"\{command}{{{''.join(argument)}}}", at
    if command in ACCENTS:
        argument, end = _argument(tokens, at + 1)
        if len(argument) == 1:
            return rf"\{command}{{{argument[0]}}}", end
        return None, at + 1  # a bar over a whole expression: read the expression
    if command.isalpha() and command not in PLAIN:
        return token, at + 1
    return (token if len(token) == 1 and token.isalpha() else None), at + 1


def _argument(tokens, at):
    """The tokens of the group or the single token at `at`, without braces, and where to go on."""
    if at >= len(tokens) or tokens[at] != "{":
        return tokens[at:at + 1], at + 1
    depth, end = 1, at + 1
    while depth:
        depth += {"{": 1, "}": -1}.get(tokens[end], 0)
        end += 1
    return tokens[at + 1:end - 1], end


def _joined(tokens):
    """A subscript in one way of writing: no spaces, words in \\text, and a single letter as such."""
    words = re.sub(r"\\(mathrm|textrm|operatorname)\b", r"\\text", "".join(tokens))
    return re.sub(r"\\text\{(\w)\}", r"\1", words)


def unknown(text, known):
    r"""Return the symbols of a text that are not among `known`, a mapping whose keys are whole symbols.

    >>> unknown(r"$h_i$ and $h_{\text{max}}$", {"h": 1, "i": 1})
    ['h_{\\text{max}}']
    """
    found = {}
    for use in used(text):
        for whole in _unknown(use, known):
            found.setdefault(whole)
    return list(found)


def _unknown(use, known):
    if use.whole in known:
        return
    if not use.subscript or r"\text" in use.subscript or use.base not in known:
        yield use.whole
        return
    for index in read(use.subscript):
        yield from _unknown(index, known)


def key(latex):
    r"""Return a symbol in the one way in which `used` writes it, or None when the LaTeX is more than one symbol.

    >>> key("N_q"), key(r"T_{\mathrm{all}}"), key(r"[H_F^{-1}]_{qq}")
    ('N_{q}', 'T_{\\text{all}}', None)
    """
    uses = read(latex)
    plain = re.sub(r"\\[,;:! ]", "", latex)
    return uses[0].whole if len(uses) == 1 and re.match(r"[\\A-Za-z]", plain) and r"\frac" not in latex else None


@cache
def _file():
    return tomllib.loads(REGISTRY.read_text(encoding="utf-8"))


def numbers():
    """Return the chapters that the registry knows, by number."""
    return sorted(int(number) for number in _file())


def modules(number):
    """Return the modules of scalebook.formulas whose symbols a chapter uses."""
    return _file()[str(number)]["modules"]


def entries(number):
    """Return a chapter's entries of symbols.toml: (how it is written, meaning, unit)."""
    return _file()[str(number)]["symbols"]


def registered(number, registry=None):
    """Return the symbols of a chapter: key to `Meaning`. Raises ValueError when one has two meanings.

    `registry` is the content of symbols.toml, unless given.

    >>> registered(4)["P"].meaning
    'pipeline stages, one a device'
    """
    entry, found = (registry or _file())[str(number)], {}
    for meaning in [*_of_formulas(entry["modules"]), *_shared(entry.get("shared", [])),
                    *(Meaning(latex, *rest) for latex, *rest in entry["symbols"])]:
        name = key(meaning.latex)
        if name is None:
            continue
        known = found.setdefault(name, meaning)
        if (known.meaning, known.unit) != (meaning.meaning, meaning.unit):
            raise ValueError(f"chapter {number}: {meaning.latex} means both {known.meaning!r} ({known.unit}) and "
                             f"{meaning.meaning!r} ({meaning.unit})")
    for meaning in _results(entry["modules"]):  # the left side of a formula, where it is no symbol of its own
        found.setdefault(key(meaning.latex), meaning)
    found.pop(None, None)
    return found


def all_meanings():
    """Return every meaning that stands in no formula's left side alone, with its chapters, by letter.

    >>> [(found.meaning, chapters) for found, chapters in all_meanings() if found.latex == "d_h"]
    [('width of a head', [1, 2, 6])]
    """
    found = {}
    for number in numbers():
        for name, meaning in _named(number).items():
            place = found.setdefault((name, meaning.meaning), (meaning, []))
            place[1].append(number)
    return sorted(found.values(), key=lambda each: (_order(each[0]), each[1]))


def letters():
    """Return the symbols with several meanings: for each the list of (meaning, chapters)."""
    by_key = {}
    for meaning, chapters in all_meanings():
        by_key.setdefault(key(meaning.latex) or meaning.latex, []).append((meaning, chapters))
    return [meanings for meanings in by_key.values() if len({meaning.meaning for meaning, _ in meanings}) > 1]


def _named(number):
    """A chapter's symbols by key, those of formulas that are more than one symbol by their LaTeX."""
    entry = _file()[str(number)]
    found = {meaning.latex: meaning for meaning in _of_formulas(entry["modules"]) if key(meaning.latex) is None}
    results = {key(meaning.latex) for meaning in _results(entry["modules"])}
    own = {key(latex) for latex, *_ in entry["symbols"]} | {
        key(meaning.latex) for meaning in [*_of_formulas(entry["modules"]), *_shared(entry.get("shared", []))]}
    return found | {name: meaning for name, meaning in registered(number).items() if name not in results - own}


def _order(meaning):
    """Latin letters first, a before A, then Greek ones and names, by what stands under accents and fonts."""
    plain = re.sub(r"\\(hat|bar|mathcal|mathbb|mathrm|mathbf|mathit|text)\b|[{}\[\]]", "", meaning.latex)
    return plain.startswith("\\"), plain.lower(), plain.swapcase(), meaning.latex


def _variables(module):
    return {variable.name: variable for name, formula in scalebook.formulas.catalogue().items()
            if name.split(".")[0] == module for variable in formula.symbols}


def _meaning(variable):
    unit = "count" if variable.count else {"1": "none"}.get(variable.unit, variable.unit)
    return Meaning(variable.latex or variable.name, variable.meaning, unit, variable.name)


def _of_formulas(modules):
    return [_meaning(variable) for module in modules for variable in _variables(module).values()]


def _results(modules):
    return [Meaning(formula.result, formula.name.replace("_", " "), formula.unit)
            for name, formula in scalebook.formulas.catalogue().items() if name.split(".")[0] in modules]


def _shared(names):
    return [_meaning(_variables(module)[name]) for module, _, name in (name.partition(".") for name in names)]
