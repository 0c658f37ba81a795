"""How the book cites: "Narayanan et al., 2021b", the same words in the text and in the list of references."""

from collections import defaultdict

from pybtex.plugin import register_plugin
from pybtex.style.formatting.plain import Style as PlainStyle
from pybtex.style.labels import BaseLabelStyle


def names(entry):
    """Return the authors of a bibliography entry in the short form of a citation."""
    last = [" ".join(person.prelast_names + person.last_names).strip("{}") for person in entry.persons["author"]]
    if len(last) > 2:
        return f"{last[0]} et al."
    return " and ".join(last)


class AuthorYearLabels(BaseLabelStyle):
    """Labels of authors and year, with a letter where two works would look the same."""

    def format_labels(self, sorted_entries):
        """Return the labels, in the order of the entries."""
        plain = [f"{names(entry)}, {entry.fields['year']}" for entry in sorted_entries]
        seen = defaultdict(int)
        labels = []
        for label in plain:
            letter = chr(ord("a") + seen[label]) if plain.count(label) > 1 else ""
            seen[label] += 1
            labels.append(label + letter)
        return labels


class BookStyle(PlainStyle):
    """Sphinx's plain list of references, sorted by author and year, with those labels."""

    default_label_style = AuthorYearLabels


register_plugin("pybtex.style.formatting", "scalebook", BookStyle)
