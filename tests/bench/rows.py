"""What a measurement is: one figure beside another that was measured in the same run."""

import datetime
import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

STORED = Path(__file__).resolve().parents[2] / "scalebook" / "data" / "performance.json"


@dataclass(frozen=True)
class Row:
    """`ours` beside `other`, both in `unit`; `beside` says what the other is, `target` the most that the ratio may be.

    A target of 0 means that there is none.
    """

    subject: str
    what: str
    ours: float
    beside: str
    other: float
    unit: str
    target: float = 0

    @property
    def ratio(self):
        """Ours by the other."""
        return self.ours / self.other

    @property
    def missed(self):
        """Whether there is a target and it is missed; a ratio that is no number misses it."""
        return bool(self.target) and not self.ratio <= self.target

    def line(self, widths=(13, 44, 36)):
        """The row as one line of the table, with the widths of its three texts."""
        subject, what, beside = widths
        goal = f"{self.target:7.3g}" if self.target else f"{'':7}"
        return (f"{self.subject:{subject}} {self.what:{what}} {self.ours:10.4g} {self.unit:4}{self.beside:{beside}} "
                f"{self.other:10.4g}{self.ratio:9.3g}{goal}{'  MISSED' if self.missed else ''}")


def table(rows):
    """The rows as the lines of one table, as wide as they need."""
    widths = [max(map(len, ("subject", *texts))) for texts in
              zip(*((row.subject, row.what, row.beside) for row in rows), strict=True)] or [7, 7, 7]
    subject, what, beside = widths
    yield (f"{'subject':{subject}} {'what':{what}} {'ours':>10} {'':4}{'beside':{beside}} {'other':>10}{'ratio':>9}"
           f"{'target':>7}")
    for row in rows:
        yield row.line(widths)


def machine():
    """The machine in words, as far as it says."""
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return ", ".join([model or platform.machine(), f"{os.cpu_count()} cores", platform.system(),
                      f"Python {platform.python_version()}"])


def store(rows, path=STORED):
    """Write the rows, with the date and the machine; subjects that were not measured keep what is stored."""
    kept, subjects = [], {row.subject for row in rows}
    if path.exists():
        kept = [row for row in json.loads(path.read_text(encoding="utf-8"))["rows"] if row["subject"] not in subjects]
    stamp = {"date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(), "machine": machine()}
    found = [asdict(row) | stamp for row in rows]
    for row in found:
        row["ours"], row["other"] = (float(f"{row[side]:.4g}") for side in ("ours", "other"))
    whole = {"command": "python -m tests.bench --store", "rows": sorted(kept + found, key=lambda row: row["subject"])}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    partial.rename(path)
