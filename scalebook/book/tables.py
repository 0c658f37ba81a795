"""Tables of sentences, on a phone: each row becomes a block, each cell has its column's heading above it.

A table with sentences in it cannot be read through a window of 390 pixels by pushing it to and fro. The build marks
such tables and writes each cell's heading beside it, for the style sheet to show. The roles keep it a table for those
who listen, also where the style sheet shows blocks.
"""

import re
from html import escape, unescape

COLUMNS = 3  # from so many on,
LETTERS = 150  # and when the longest cells of the columns have so many together
ALWAYS = "formulas"  # a table of this class, which holds names and mathematics


def setup(app):
    """Look at each page before it is written."""
    app.connect("html-page-context", _mark_tables, priority=810)


def marked(html):
    """Return the HTML with its tables of sentences marked "stacked"; other tables stay as they are.

    >>> row = "<tr><td>1</td><td>yes</td><td>" + 15 * "words and " + "</td><td>no</td></tr>"
    >>> head = "<thead><tr>" + "".join(f"<th>{name}</th>" for name in ("No.", "Done", "What", "Why")) + "</tr></thead>"
    >>> stacked = marked(f'<table class="table">{head}<tbody>{row}</tbody></table>')
    >>> stacked[:69], stacked.count('role="cell"'), 'data-label="Done"' in stacked
    ('<table class="table stacked" role="table"><thead role="rowgroup"><tr ', 4, True)
    >>> marked("<table><thead><tr><th>a</th></tr></thead></table>")
    '<table><thead><tr><th>a</th></tr></thead></table>'
    """
    return re.sub(r"<table.*?</table>", lambda match: _marked_table(match[0]), html, flags=re.DOTALL)


def _words(html):
    return " ".join(unescape(re.sub(r"<[^>]*>", "", html)).split())


def _marked_table(html):
    headings = [_words(cell) for cell in re.findall(r"<th\b[^>]*>(.*?)</th>", html, re.DOTALL)]
    rows = [re.findall(r"<td\b[^>]*>(.*?)</td>", row, re.DOTALL)
            for row in re.findall(r"<tr\b.*?</tr>", html, re.DOTALL)[1:]]
    if len(headings) < COLUMNS or any(len(row) != len(headings) for row in rows):
        return html
    letters = sum(max(len(_words(cell)) for cell in column) for column in zip(*rows, strict=True))
    if letters < LETTERS and not re.match(rf'<table[^>]* class="[^"]*\b{ALWAYS}\b', html):
        return html
    names = iter(headings * len(rows))
    html = re.sub(r"<td\b", lambda match: f'<td role="cell" data-label="{escape(next(names))}"', html)
    for element, role in (("thead", "rowgroup"), ("tbody", "rowgroup"), ("tr", "row"), ("th", "columnheader")):
        html = re.sub(rf"<{element}\b", f'<{element} role="{role}"', html)
    if re.match(r'<table[^>]* class="', html):
        return re.sub(r'^<table([^>]*) class="([^"]*)"', r'<table\1 class="\2 stacked" role="table"', html)
    return html.replace("<table", '<table class="stacked" role="table"', 1)


def _mark_tables(app, pagename, templatename, context, doctree):
    if "body" in context and app.builder.format == "html":
        context["body"] = marked(context["body"])
