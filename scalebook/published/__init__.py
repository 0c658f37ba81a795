"""Other people's figures: models, machines and tables, each row with its source.

Everything is read from the `*.toml` files in this folder, where numbers stand as they were printed: a rounded
figure stays rounded, and a column that was computed here says so. GB means 1e9 bytes, GiB 2**30 bytes.
"""

from scalebook.published.machines import Machine, machine, machines
from scalebook.published.models import ModelShape, model, models
from scalebook.published.tables import Table, table, tables

__all__ = ["Machine", "ModelShape", "Table", "machine", "machines", "model", "models", "table", "tables"]
