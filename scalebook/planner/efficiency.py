"""The one constant of each machine kind, fitted to published runs: `python -m scalebook.planner.validation` prints it.

It is the share of what the machine is sold for that the published programs reached, of FLOP/s, memory and links alike.
`tests/test_planner_validation.py` fits it again.
"""

EFFICIENCY = {"A100-80GB": 0.670, "H100": 0.594}
UNKNOWN = 0.6  # of a machine without a published run to fit it to
