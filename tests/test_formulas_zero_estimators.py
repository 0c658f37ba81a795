"""DeepSpeed's estimators: the numbers that its documentation prints, and the two versions of stage 2 told apart."""

import pytest

from scalebook import published
from scalebook.formulas import zero as formulas
from scalebook.formulas import zero_estimators as estimators

ADAM = formulas.recipes()["mixed precision"].sizes
SIZES = {"Psi": 2_851_000_000, "Psi_l": 32_000_000, "N": 8, "n": 1, "f": 1.5}
GPU = {(2, "GPU", "host"): estimators.stage2_offload, (2, "GPU", "GPU"): estimators.stage2_before,
       (3, "host", "host"): estimators.stage3_offload_all, (3, "GPU", "host"): estimators.stage3_offload,
       (3, "GPU", "GPU"): estimators.stage3}
HOST = {(2, "GPU", "host", False): estimators.host_stage2_offload, (2, "GPU", "GPU", False): estimators.host,
        (3, "host", "host", False): estimators.host_stage3_offload_all,
        (3, "GPU", "host", False): estimators.host_stage3_offload, (3, "GPU", "GPU", False): estimators.host,
        (3, "host", "host", True): estimators.host_stage3_init_offload_all,
        (3, "GPU", "host", True): estimators.host_stage3_init_offload,
        (3, "GPU", "GPU", True): estimators.host_stage3_init}


def gib(formula):
    return formula(**{variable.name: SIZES[variable.name] for variable in formula.symbols}) / 2**30


@pytest.mark.parametrize("row", published.table("deepspeed_estimates").rows, ids=lambda row: "-".join(
    str(row[name]) for name in ("stage", "weights_on", "optimizer_on", "zero_init")))
def test_the_estimates_are_those_that_the_documentation_prints(row):
    setting = row["stage"], row["weights_on"], row["optimizer_on"]
    assert gib(GPU[setting]) == pytest.approx(row["gpu_GiB"], abs=0.00501)
    assert gib(HOST[(*setting, row["zero_init"])]) == pytest.approx(row["host_GiB"], abs=0.00501)


def test_the_later_version_of_stage_2_shares_the_gradients_and_answers_less_from_two_gpus_on():
    assert round(gib(estimators.stage2_before), 2) == 15.93
    assert round(gib(estimators.stage2), 2) == 11.28
    for N in (1, 2, 8, 64):
        before, since = (formula(Psi=8 * 10**9, N=N) for formula in (estimators.stage2_before, estimators.stage2))
        assert (before > since) == (N > 1)
    # The paper's stage 2 keeps one copy of the gradients; the estimator a second one, in fp32.
    paper = formulas.state_bytes_stage2(Psi=8 * 10**9, N=64, **ADAM)
    assert estimators.stage2(Psi=8 * 10**9, N=64) == paper + 4 * 8 * 10**9 / 64


def test_on_two_nodes_the_host_of_one_offloads_half_of_stage_3():
    one, two = (estimators.host_stage3_init_offload(Psi=10**9, n=n, f=1) for n in (1, 2))
    assert one == 2 * two == 16 * 10**9
    with pytest.raises(ValueError, match="N must be a multiple of n"):
        estimators.host_stage3_offload(Psi=10**9, N=8, n=3, f=1.5)
