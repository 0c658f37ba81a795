"""Published tables: the numbers as printed, with the paper and the table's number beside them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from types import MappingProxyType

from scalebook.checks import instance, shown
from scalebook.published import files

NOT_TABLES = ("machines", "models")


@dataclass(frozen=True)
class Table:
    """One published table.

    `rows` are dicts from a column's name to its value, as printed; a cell that the table leaves empty is None.
    `units` says what a column counts, where its name does not. `computed` names the columns that were computed
    here from the others or from a published configuration, not printed by the source.
    """

    name: str
    source: str
    columns: tuple[str, ...]
    rows: tuple[dict, ...]
    note: str = ""
    units: dict = field(default_factory=dict)
    computed: tuple[str, ...] = ()

    def __post_init__(self):
        """Refuse a table without a source, with doubled columns, or with a row that does not fit them."""
        _check_columns(self)
        rows = tuple(MappingProxyType(dict(_as_mapping(self, number, row))) for number, row in enumerate(self.rows))
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "computed", tuple(self.computed))
        object.__setattr__(self, "rows", rows)
        for number, row in enumerate(rows):
            if not str(self.source_of(row) or "").strip():
                raise ValueError(f"table {self.name!r}: row {number} has no source")

    def __len__(self):
        """Return the number of rows."""
        return len(self.rows)

    def __iter__(self):
        """Iterate over the rows, each a dict."""
        return iter(self.rows)

    def column(self, name):
        """Return one column as a list, in the order of the rows; raise ValueError for an unknown name.

        >>> table("narayanan2021_table1").column("GPUs")
        [32, 128, 512, 1536, 3072]
        """
        self._check_name(name)
        return [row[name] for row in self.rows]

    def where(self, **conditions):
        """Return the rows whose columns equal the values given, as a Table; raise ValueError for no such column.

        >>> table("narayanan2021_table1").where(PP=64).row()["TFLOPs_per_GPU"]
        163
        """
        for name, value in conditions.items():
            self._check_name(name)
            if value is not None and not isinstance(value, str | bool | int | float | Fraction):
                raise ValueError(f"{name} = {shown(value)} is not allowed; it must be what a cell can hold")
        kept = tuple(row for row in self.rows if all(row[name] == value for name, value in conditions.items()))
        return Table(self.name, self.source, self.columns, kept, self.note, self.units, self.computed)

    def row(self, **conditions):
        """Return the only row that meets the conditions; raise ValueError when there is none, or more than one."""
        found = self.where(**conditions).rows
        if len(found) != 1:
            raise ValueError(f"table {self.name!r}: {len(found)} rows meet {conditions}; row() needs exactly one")
        return found[0]

    def source_of(self, row):
        """Return where a row comes from: its own `source` column when the table has one, else the table's."""
        return row["source"] if "source" in self.columns else self.source

    def _check_name(self, name):
        if not isinstance(name, str) or name not in self.columns:
            raise ValueError(f"table {self.name!r} has no column {shown(name)}; it has {', '.join(self.columns)}")

    def _repr_html_(self):
        head = "".join(f"<th>{_escape(name)}</th>" for name in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{_escape(row[name])}</td>" for name in self.columns) + "</tr>\n"
                       for row in self.rows)
        return (f'<div class="published-table" style="overflow-x: auto">\n<table>\n'
                f"<caption>{_escape(self.source)}</caption>\n"
                f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n</div>")


def _escape(value):
    text = "" if value is None else str(value)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _check_columns(found):
    for what in ("name", "note"):
        instance(what, getattr(found, what), str, "a text")
    for what, kind in (("columns", list | tuple), ("rows", list | tuple), ("computed", list | tuple),
                       ("units", Mapping)):
        instance(what, getattr(found, what), kind, "a mapping" if kind is Mapping else "a list")
    for what in ("columns", "computed", "units"):
        if not all(isinstance(one, str) for one in getattr(found, what)):
            raise ValueError(f"{what} = {shown(getattr(found, what))} is not allowed; all names must be texts")
    if not isinstance(found.source, str) or not found.source.strip():
        raise ValueError(f"table {found.name!r}: source = {found.source!r} is not allowed; it must say where "
                         "the table stands")
    if not found.columns or len(set(found.columns)) != len(found.columns):
        raise ValueError(f"table {found.name!r}: columns must be given, each once (got {found.columns!r})")
    for what in ("computed", "units"):
        unknown = sorted(set(getattr(found, what)) - set(found.columns))
        if unknown:
            raise ValueError(f"table {found.name!r}: {what} names {unknown[0]!r}, which is not a column")


def _as_mapping(found, number, row):
    where = f"table {found.name!r}: row {number}"
    if isinstance(row, Mapping):
        unknown = sorted(set(row) - set(found.columns))
        if unknown:
            raise ValueError(f"{where} has {unknown[0]!r}, which is not a column")
        return {name: row.get(name) for name in found.columns}
    if not isinstance(row, list | tuple):
        raise ValueError(f"{where} is {shown(row)}; rows must hold mappings or lists")
    if len(row) != len(found.columns):
        raise ValueError(f"{where} has {len(row)} values for {len(found.columns)} columns")
    return dict(zip(found.columns, row, strict=True))


@cache
def _all_tables():
    found = {}
    for stem in files.stems():
        if stem in NOT_TABLES:
            continue
        for name, entry in files.read(stem).items():
            if name in found:
                raise ValueError(f"table {name!r} stands twice; the second is in {stem}.toml")
            found[name] = files.build(Table, "table", name, entry)
    return found


def table(name: str) -> Table:
    """Return one published table; raise ValueError that lists the nearest names when there is none.

    >>> table("zb_table1").source
    'arXiv:2401.10241, Table 1'
    """
    return files.find("table", name, _all_tables())


def tables() -> list[str]:
    """Return the names of all published tables, sorted.

    >>> "narayanan2021_table1" in tables()
    True
    """
    return sorted(_all_tables())
