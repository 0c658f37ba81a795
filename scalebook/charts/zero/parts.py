"""The parts of the model states and their colours. A stage has the colour of the part that it is the first to shard."""

from scalebook import colours

WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer states"
PARTS = {WEIGHTS: colours.PARAMETER, GRADIENTS: colours.GRADIENT, OPTIMIZER: colours.OPTIMIZER}
STAGES = {"stage 0": colours.IDLE, "stage 1": PARTS[OPTIMIZER], "stage 2": PARTS[GRADIENTS], "stage 3": PARTS[WEIGHTS]}


def shared_by(stage, ranks="N"):
    """How many ranks share each part at a stage, by the formulas' symbols; expressions of Vega.

    >>> shared_by("datum.stage")
    {'n_o': '(datum.stage >= 1 ? N : 1)', 'n_g': '(datum.stage >= 2 ? N : 1)', 'n_w': '(datum.stage >= 3 ? N : 1)'}
    """
    return {name: f"({stage} >= {first} ? {ranks} : 1)" for first, name in enumerate(("n_o", "n_g", "n_w"), 1)}
