"""Published runs that no constant of the planner was fitted to: how far it can be trusted with others' programs.

Rows that the book's tables leave out, BLOOM, Nemotron-4, and PyTorch's fully sharded data parallelism. Run it:
`python -m scalebook.planner.elsewhere`.
"""

import argparse
from dataclasses import replace

from scalebook import published
from scalebook.planner.efficiency import EFFICIENCY
from scalebook.planner.sizes import gpt
from scalebook.planner.validation import MEGATRON, Run, compare, median_error, recomputation, rows, weak_scaling
from scalebook.published import ModelShape

# Jean Zay: four Omni-Path links of 100 Gb/s a node (arXiv:2211.05100, on the hardware of the training).
JEAN_ZAY = 4 * 100e9 / 8
NEMOTRON = ModelShape(
    name="Nemotron-4-340B", source="mgoin/Nemotron-4-340B-Base-hf, config.json", vocabulary=256000, d_model=18432,
    layers=96, heads=96, kv_heads=8, head_dim=192, d_ff=73728, ffn_mats=2, norm="layernorm", context=4096,
    published="340B")


def runs():
    """All of them, in the order of the tables."""
    return (*megatron(), *megatron_core(), *fsdp())


def megatron():
    """Megatron-LM on A100: weak scaling, recomputation, and BLOOM by Megatron-DeepSpeed."""
    yield from weak_scaling(published.table("narayanan2021_table1_others"))
    yield from recomputation(published.table("korthikanti2022_table5_others"))
    table = published.table("bloom_configurations")
    machine = replace(published.machine("A100-80GB"), internode_node=JEAN_ZAY)
    for row in table:
        model = replace(gpt(14336, row["heads"], 70, vocabulary=250880), learned_positions=0)
        plan = {**MEGATRON, "tp": row["TP"], "pp": row["PP"], "dp": row["DP"], "batch": row["sequences"], "zero": 1,
                "sequence": 2048, "micro_batch": row["micro_batch"], "recompute": "full", "recipe": "fp32 gradients"}
        yield Run(f"BLOOM, TP{row['TP']}, {row['heads']} heads, micro-batch {row['micro_batch']}", machine, model, plan,
                  row["seconds"], table.source)


def megatron_core():
    """Nemotron-4 340B on H100 by Megatron-Core, which hides messages: NVIDIA's benchmark, and the training."""
    for row in published.table("nemotron4_340b_runs"):
        plan = {"tp": row["TP"], "pp": row["PP"], "dp": row["DP"], "batch": row["sequences"], "sequence": 4096,
                "micro_batch": 1, "zero": 1}
        known = {"chunks": row["chunks"]} if row["chunks"] else {}
        yield Run(f"Nemotron-4 340B on {row['GPUs']}", "H100", NEMOTRON, {**plan, **known}, row["seconds"],
                  row["source"], () if known else ("chunks",))


def fsdp():
    """ZeRO-3 as PyTorch has it: no tensor parallelism and no pipeline; messages run while the GPU computes."""
    for row in published.table("mpt_runs"):
        name = f"MPT {row['model'].upper()} by FSDP on {row['GPUs']}"
        yield sharded(row, row["machine"], mpt(row["model"], row["positions"]),
                      name if row["positions"] == 2048 else f"{name}, {row['positions']} tokens",
                      published.table("mpt_runs").source)
    for row in published.table("llama_runs"):
        yield sharded(row, "A100-80GB", llama(row), f"{row['model']} by FSDP on {row['GPUs']}", row["source"])


def sharded(row, machine, model, name, source):
    """One run by fully sharded data parallelism."""
    plan = {"tp": 1, "pp": 1, "dp": row["GPUs"], "batch": row["sequences"], "sequence": row["positions"],
            "micro_batch": row["micro_batch"], "zero": 3, "recompute": row["recompute"]}
    seconds = row["sequences"] * row["positions"] / (row["tokens_per_second"] * row["GPUs"])
    return Run(name, machine, model, plan, seconds, source)


def mpt(name, positions):
    """The shape of an MPT, which is a GPT without biases whose table of positions is as long as its sequence."""
    row = published.table("mpt_shapes").row(model=name)
    return gpt(row["hidden"], row["heads"], row["layers"], vocabulary=50368, positions=positions)


def llama(row):
    """The shape of a Llama: that of Llama 3 with other numbers."""
    return replace(published.model("Llama-3-70B"), name=row["model"], d_model=row["hidden"], layers=row["layers"],
                   heads=row["heads"], kv_heads=row["kv_heads"], d_ff=row["d_ff"], vocabulary=row["vocabulary"])


def main():
    """Print every run beside its prediction, and the median error of each family."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    families = (("Megatron", megatron), ("Megatron-Core", megatron_core), ("FSDP", fsdp))
    found = {name: compare(list(family()), EFFICIENCY) for name, family in families}
    print("\n".join(rows([one for family in found.values() for one in family])))
    for name, family in found.items():
        print(f"{name}: median error {100 * median_error(family):.1f}%")


if __name__ == "__main__":
    from scalebook.planner.elsewhere import main

    main()
