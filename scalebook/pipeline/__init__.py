"""Pipelines: the orders of operations of six schedules, and an event simulation that finds what they cost.

`orders` holds the schedules, `simulation` finds when each operation runs, `timeline` measures and validates.
"""

from scalebook.pipeline.simulation import SCHEDULES, order_of, simulate, simulate_order
from scalebook.pipeline.timeline import Operation, Pipeline, Timeline

__all__ = ["SCHEDULES", "Operation", "Pipeline", "Timeline", "order_of", "simulate", "simulate_order"]
