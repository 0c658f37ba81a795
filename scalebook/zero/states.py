"""What a rank keeps and what it sends: two questions that need no tensor.

The equations are in `scalebook.formulas.zero`; these functions take the stage as a number and the recipe by its name.
"""

import numbers
from fractions import Fraction

from scalebook.checks import count
from scalebook.formulas import zero as formulas

STAGES = (0, 1, 2, 3)


def model_state_bytes(
    parameters: int, ranks: int, stage: int, recipe: str | formulas.Recipe = "mixed precision"
) -> int | Fraction:
    """Bytes of weights, gradients and optimizer states that one of `ranks` keeps: an int, or a `Fraction`.

    `parameters` and `ranks` are whole numbers; a float that is one will do, such as 7.5e9.
    `stage` is 0 (plain data parallelism) to 3. `recipe` names one of `scalebook.formulas.zero.recipes()`, or is a
    `Recipe`; unless told otherwise it is Adam in mixed precision, 2 + 2 + 12 bytes a parameter. Shards are exact
    parts: a library rounds them up (`padding_elements`). Buffers and activations are not counted.

    Raises ValueError that names the argument for a number of parameters or ranks that is not a whole number above 0,
    for a stage that does not exist, and for a recipe that is not known.

    Source: Rajbhandari et al., arXiv:1910.02054, section 5 and figure 1.

    >>> [float(model_state_bytes(7_500_000_000, 64, stage) / 10**9) for stage in (0, 1, 2, 3)]
    [120.0, 31.40625, 16.640625, 1.875]
    >>> model_state_bytes(100, 3, 3)
    Fraction(1600, 3)
    """
    parameters, ranks = _check(stage, parameters=parameters, ranks=ranks)
    formula = formulas.STATE_BYTES[stage]
    known = {"Psi": parameters, "N": ranks, **_recipe(recipe).sizes}
    return formula(**{variable.name: known[variable.name] for variable in formula.symbols})


def communication_bytes(
    parameters: int, ranks: int, stage: int, microbatches: int = 1, recipe: str | formulas.Recipe = "mixed precision",
    release_after_forward: bool = True,
) -> int | Fraction:
    """Bytes that each of `ranks` sends in a training step: an int, or a `Fraction`.

    Every collective is a ring: a reduce-scatter or an all-gather of b bytes sends b (N-1)/N, an all-reduce twice that.
    Weights travel in their `recipe`'s size, and so do gradients. Gradients of `microbatches` are added up first where
    the stage keeps whole gradients (0 and 1); stages 2 and 3 reduce each, and stage 3 gathers the weights twice for
    each, or once where `release_after_forward` is False.

    Raises ValueError as `model_state_bytes`, also for `microbatches`, and for `release_after_forward` = False below
    stage 3, which never releases.

    Source: Rajbhandari et al., arXiv:1910.02054, section 7.

    >>> [float(communication_bytes(1000, 64, stage) / (2 * 1000)) for stage in (0, 1, 2, 3)]
    [1.96875, 1.96875, 1.96875, 2.953125]
    >>> [communication_bytes(1000, 4, stage, microbatches=8) for stage in (1, 2, 3)]
    [3000, 13500, 36000]
    """
    parameters, ranks, microbatches = _check(stage, parameters=parameters, ranks=ranks, microbatches=microbatches)
    if release_after_forward not in (True, False) or not (release_after_forward or stage == 3):
        raise ValueError(f"release_after_forward = {release_after_forward!r} is not allowed at stage {stage}; it must "
                         "be True below stage 3, and True or False there")
    sizes = _recipe(recipe).sizes
    c_w, c_g = passes(stage, microbatches, release_after_forward)
    return formulas.sent_bytes(Psi=parameters, N=ranks, b_w=sizes["b_w"], b_g=sizes["b_g"], c_w=c_w, c_g=c_g)


def passes(stage, microbatches=1, release_after_forward=True):
    """How often a stage moves all weights, and all gradients, by one reduce-scatter or all-gather: (c_w, c_g).

    >>> [passes(stage, microbatches=5) for stage in (0, 1, 2, 3)]
    [(0, 2), (1, 1), (1, 5), (10, 5)]
    """
    M, gathers = microbatches, 2 if release_after_forward else 1
    return ((0, 2), (1, 1), (1, M), (gathers * M, M))[stage]


def _check(stage, **counts):
    if isinstance(stage, bool) or not isinstance(stage, numbers.Integral) or stage not in STAGES:
        raise ValueError(f"stage = {stage!r} is not allowed; stage must be 0, 1, 2 or 3")
    return [count(name, value) for name, value in counts.items()]


def _recipe(recipe):
    if isinstance(recipe, formulas.Recipe):
        return recipe
    known = formulas.recipes()
    if not isinstance(recipe, str) or recipe not in known:
        raise ValueError(f"recipe = {recipe!r} is not allowed; recipe must be a Recipe, or one of {', '.join(known)}")
    return known[recipe]
