"""The book's Markdown as any notebook shows it: directives and roles become headings, quotes, links and plain words.

Jupyter and Colab know Markdown, mathematics and pictures, and print MyST's own syntax as it stands. What cannot be said
without it raises ValueError: a reader must never be left with a riddle. Python code, fenced or inline, stays as it is.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from scalebook.book.equations import LABELLED

FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,}|~{3,}|:{3,})(?P<word>\{[\w:-]+\})?(?P<rest>.*)$")
TARGET = re.compile(r"^\([\w:.-]+\)=\s*$", re.MULTILINE)
OPTION = re.compile(r"^:([\w-]+):\s*(.*)$")
# What is looked for in running text, in one pass: a role, inline code, an equation with its label, other mathematics
# (which stays as it is, like code), a link.
INLINE = re.compile(r"""\{(?P<role>[\w:-]+)\}`(?P<content>[^`]+)`
    | (?P<code>(?P<marks>`+)(?!`).*?(?<!`)(?P=marks)(?!`))
    | """ + LABELLED + r"""
    | (?P<math>\$\$.*?\$\$ | (?<!\\)\$[^$\n]+\$)
    | (?P<picture>!?)\[(?P<words>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<address>[^()\s]+(?:\([^()\s]*\)[^()\s]*)*)\)""",
                    re.VERBOSE | re.DOTALL)
BOXES = {"note", "tip", "hint", "important", "warning", "caution", "attention", "danger", "error", "seealso",
         "admonition", "dropdown"}
CODE = {"code", "code-block", "sourcecode"}


@dataclass(frozen=True)
class Context:
    """What the converted text may refer to.

    `picture` gives a picture's address from the one in the text. `cite` gives a work's label and address from its key.
    `page` is the address of the chapter on the web, to which relative links are joined; without it they become words.
    `equations` has the book's labelled equations by their labels, and `chapter` is the path of the text's own.
    """

    picture: object
    cite: object
    page: str | None = None
    equations: dict = field(default_factory=dict)
    chapter: Path | None = None

    def number(self, label):
        """The number of a labelled equation; ValueError when no equation of the book has the label."""
        if label not in self.equations:
            raise ValueError(f"no equation of the book has the label {label!r}")
        return self.equations[label].number


def plain(text, context):
    """Return Markdown without MyST's directives and roles; raise ValueError for a directive with no plain form.

    >>> print(plain("````{exercise} One line\\n:label: ex-a\\n\\nWhat is {math}`2^2`?\\n````", Context(str, str)))
    ### Exercise: One line
    <BLANKLINE>
    What is $2^2$?
    >>> plain("see [ZeRO](05_zero.ipynb) and [this](https://a.org)", Context(str, str))
    'see ZeRO and [this](https://a.org)'
    """
    pieces, lines = [], text.split("\n")
    prose = []
    while lines:
        opened = FENCE.match(lines[0])
        if not opened:
            prose.append(lines.pop(0))
            continue
        pieces += [_prose("\n".join(prose), context)] if prose else []
        prose = []
        inside, lines = _fenced(lines, opened)
        word = (opened["word"] or "").strip("{}")
        if word or opened["marks"].startswith(":"):
            pieces.append(_directive(word, opened["rest"].strip(), inside, context))
        else:
            pieces.append("\n".join([opened[0], *inside, opened["indent"] + opened["marks"]]))
    pieces += [_prose("\n".join(prose), context)] if prose else []
    return re.sub(r"\n{3,}", "\n\n", "\n".join(pieces)).strip("\n")


def _fenced(lines, opened):
    """Split the lines after an opening fence: those inside it, and those after its end."""
    close = re.compile(rf"^ *{re.escape(opened['marks'][0])}{{{len(opened['marks'])},}}\s*$")
    for number, line in enumerate(lines[1:], 1):
        if close.match(line):
            return lines[1:number], lines[number + 1:]
    raise ValueError(f"nothing closes the block that begins with {opened[0]!r}")


def _directive(word, argument, inside, context):
    options, body = {}, list(inside)
    while body and (option := OPTION.match(body[0].strip())):
        options[option[1]] = option[2]
        body.pop(0)
    content = "\n".join(body).strip("\n")
    if word == "solution-end":
        return ""
    if word == "solution-start":
        return "#### Solution"
    if word in ("exercise", "exercise-start"):
        return f"### Exercise: {argument}\n\n{plain(content, context)}".rstrip()
    if word in BOXES:
        title = plain(argument, context) or word.replace("seealso", "see also").capitalize()
        return _quoted(f"**{title}**\n\n{plain(content, context)}")
    if word == "math":
        tag = f"\n\\tag{{{context.number(options['label'])}}}" if "label" in options else ""
        return f"$$\n{content or argument}{tag}\n$$"
    if word in ("figure", "image"):
        caption = f"\n\n*{plain(content, context)}*" if content else ""
        return f"![{options.get('alt', '')}]({context.picture(argument)}){caption}"
    if word in CODE:
        return f"```{argument}\n{content}\n```"
    if word == "":  # a plain container
        return plain(content, context)
    raise ValueError(f"the directive {word!r} is not allowed in a chapter; allowed are exercise, solution-start, "
                     f"solution-end, math, figure, image, {', '.join(sorted(CODE | BOXES))}")


def _quoted(text):
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def _prose(text, context):
    """Convert what stands outside of fences; inline code and mathematics stay as they are."""
    return _words(TARGET.sub("", text), context)


def _words(text, context):
    return INLINE.sub(lambda found: _inline(found, context), text)


def _inline(found, context):
    if found["role"]:
        return _role(found["role"], found["content"], context)
    if found["label"]:
        return f"$${found['tex'].rstrip()} \\tag{{{context.number(found['label'])}}}$$"
    return _link(found, context) if found["address"] else found[0]


def _role(name, content, context):
    if name == "math":
        return f"${content}$"
    if name == "eq":
        return _reference(content, context)
    if name.split(":")[0] == "cite":
        works = [context.cite(key.strip()) for key in content.split(",")]
        linked = "; ".join(f"[{label}]({address})" if address else label for label, address in works)
        return linked if name in ("cite:t", "cite:year") else f"[{linked}]" if len(works) > 1 else f"({linked})"
    said = re.sub(r"\s*<[^>]*>$", "", content)
    return f"`{said}`" if name.split(":")[0] == "py" else said


def _reference(label, context):
    """An equation's number; that of another chapter's is a link where the site's address is known."""
    number = f"({context.number(label)})"
    other = context.equations[label].chapter
    if not context.page or other == context.chapter:
        return number
    return f"[{number}]({urljoin(context.page, other.with_suffix('.html').name)}#equation-{label})"


def _link(link, context):
    address = link["address"]
    if urlsplit(address).scheme:
        return link[0]
    if link["picture"]:
        return f"![{link['words']}]({context.picture(address)})"
    words = _words(link["words"], context)
    if context.page:
        return f"[{words}]({urljoin(context.page, re.sub(r'[.](ipynb|md)(?=#|$)', '.html', address))})"
    return words
