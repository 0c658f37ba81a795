"""One good call of every public function, class and method: the arguments that the fuzz tests then spoil.

`GOOD` maps a public name to a function that makes the arguments anew, by the parameters' names. Of a method it also
makes the object, under "self". `NOT_FUZZED` says of every other public name why it has none.
"""

import functools

import torch

GOOD, NOT_FUZZED = {}, {}
# The argument that says what the error is to call the value: it is no input.
CALLED = {"scalebook.checks.whole", "scalebook.checks.count", "scalebook.checks.size",
          "scalebook.checks.number", "scalebook.checks.flag",
          "scalebook.checks.scalar", "scalebook.checks.module", "scalebook.checks.group",
          "scalebook.collectives.one_for_each_rank"}
# What else names the argument of these, in their errors: what it is called one level below, or in plain words.
ALSO = {f"scalebook.{name}": words for names, words in (
    (("formulas.Variable.check",), {"P"}), (("published.machine", "published.model", "published.table"), {"named"}),
    (("published.Table.column",), {"column"}), (("published.Table",), {"row"}), (("planner.sizes_of",), {"model"}),
    (("charts.pipeline.slow_rows",), {"stages"}),
    (("labs.collectives.move_data", "labs.collectives.ring_steps", "labs.tensor_parallel_torch.run_plans"),
     {"world_size"}),
    (("labs.pipeline.measure_makespan",), {"forward", "backward", "weight"}), (("explorer.pack",), {"pack"}),
    (("labs.tensor_parallel_settings.single_process", "labs.tensor_parallel.compare"), {"ranks"}),
    (("charts.quantization.alpha.alpha_row",), {"group_size"}),
    (("tensor_parallel.unshard_state",), {"heads", "columns", "gate"}),
    (("charts.pipeline.trade_row", "charts.pipeline.gantt_row", "charts.zero.life.life_row"), {"pack", "stages"}),
    (("labs.pipeline.torch_1f1b_step", "labs.pipeline.train_step"), {"pieces"}),
    (("labs.zero_checkpoint.train_in_two_parts",), {"ranks"}),
) for name in names}
# Parts of a model, and what moves or adds up their activations: they hand on a NaN, as PyTorch's do.
NAN_PASSES = {f"scalebook.{name}" for name in (
    *(f"tensor_parallel.{name}" for name in (
        "Region.enter", "Region.leave", "copy_to_ranks", "reduce_from_ranks", "gather_sequence", "scatter_sequence",
        "shard_columns", "shard_rows",
        "shard_sequence", "unshard_sequence",
        "dropout", "recompute", "causal_attention", "vocabulary_parallel_cross_entropy", "Block.forward",
        "ParallelAttention.forward", "ParallelBlock.forward", "ParallelMLP.forward", "ColumnParallelLinear.forward",
        "RowParallelLinear.forward")),
    "zero.Bucket.flatten", "zero.Bucket.views", "explorer.grid", "moe.swiglu",
    *(f"collectives.{name}" for name in (
        "ring_reduce_scatter", "ring_all_gather", "ring_all_reduce", "ring_broadcast", "all_to_all",
        "one_for_each_rank", "exchange")))}


def good(public_name, /, **arguments):
    """Enter a call; an argument that must be made anew each time is given as a function without parameters."""
    GOOD[f"scalebook.{public_name}"] = lambda: {key: value() if isinstance(value, Fresh) else value
                                         for key, value in arguments.items()}


def not_fuzzed(reason, *names):
    """Enter the reason why these are left out."""
    NOT_FUZZED.update({f"scalebook.{name}": reason for name in names})


class Fresh:
    """An argument that is made for each call."""

    def __init__(self, make):
        self.make = make

    def __call__(self):
        return self.make()


def tensor(*shape, dtype=torch.float64, seed=0):
    """Normal numbers of a shape, the same every time."""
    return Fresh(lambda: torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)))


def whole(*shape, below=8):
    """Whole numbers from 0 to below a limit."""
    return Fresh(lambda: torch.randint(below, shape, generator=torch.Generator().manual_seed(0)))


def shares(*shape):
    """Distributions over the last dimension."""
    return Fresh(lambda: torch.softmax(tensor(*shape)(), -1))


def square(size):
    """A positive definite matrix."""
    return Fresh(lambda: (lambda x: x.T @ x / len(x) + torch.eye(size, dtype=torch.float64))(tensor(4 * size, size)()))


def from_(make):
    """Whatever a function of no arguments makes, each time."""
    return Fresh(make)


def once(make):
    """The same, made once: for what takes long, and is not changed by a call."""
    return Fresh(functools.cache(make))


# Whole modules that are not imported before they are needed keep this file quick to read.


def _published():
    from scalebook import published

    return published


def _model(name="Mixtral-8x7B"):
    return from_(lambda: _published().model(name))


_LLAMA = from_(lambda: next(_published().model(name) for name in _published().models()
                            if _published().model(name).moe_layers == 0))


# Small modules.
for _name in ("whole", "count", "size", "number", "scalar"):
    good(f"checks.{_name}", name="ranks", value=3)
good("checks.flag", name="causal", value=True)
good("checks.module", name="model", value=torch.nn.Linear(1, 1))
good("checks.group", name="group", value=None)
good("checks.is_number", value=3)
good("checks.shown", value=3)
not_fuzzed("given by the library what is allowed", "checks.one_of", "checks.instance", "checks.tensor",
           "checks.real_tensor", "checks.accepted")
not_fuzzed("called by the library on its own functions", "borders.guarded", "borders.guard", "borders.sizes_agree")
good("colours.contrast", first="#000000", second="#ffffff")
good("data.load", name=from_(lambda: next(iter(__import__("pathlib").Path(__import__("scalebook.data", fromlist="x")
                                               .__file__).parent.glob("*.json"))).stem))
good("exercises.check", answer=7, correct=7, wrong=[(8, "that counts both ends")])
good("explorer.grid", fn=lambda a: {"b": a}, a=[1, 2])
good("explorer.pack", numbers=[1, 35, 36], width=2)
good("explorer.unpack_expression", text="datum.s", position="datum.i", width=2)


def _chart():
    return {"mark": "point", "data": {"values": [{"x": 1}]}, "params": [],
            "encoding": {"x": {"field": "y", "type": "quantitative"}},
            "transform": [{"calculate": "datum.x * P", "as": "y"}]}


def _slider():
    import ipywidgets

    return ipywidgets.IntSlider(value=2, min=1, max=4)


good("explorer.explore", chart=from_(_chart), caption="A line.", alt="A line that rises.", name="line", enabled=None,
     renderer="svg", P=from_(_slider))
good("explorer.predict", question="How many?", answers={1.0: "Too few.", 2.0: "It is.", 3.0: "Too many."}, right=2.0,
     name="many", show="{:.0f}")
not_fuzzed("made by `explore` and `predict`, which check", "explorer.Explorer", "explorer.Prediction")
not_fuzzed("given by the library a name and a range", "collectives.whole_number")
not_fuzzed("serves packages of this library, which tests import", "lazy.lazily", "lazy.without_torch")
not_fuzzed("a step of `python -m scalebook.texts`, which takes no input", "texts.download", "texts.unpack",
           "texts.check_hash", "texts.write_whole")

# Formulas.


def _formula():
    from scalebook.formulas import pipeline

    return pipeline.bubble_overhead


def _variable():
    from scalebook.formulas import Variable

    return Variable("P", "stages", count=True, minimum=1)


good("formulas.Formula.vega", self=from_(_formula), M="datum.M")
good("formulas.Variable.check", self=from_(_variable), value=3, where="here")
not_fuzzed("written by the authors, in `scalebook.formulas`; a test reads each", "formulas.Formula",
           "formulas.Variable")

# Published figures.
good("published.machine", name="H100")
good("published.model", name="Mixtral-8x7B")
good("published.table", name="zb_table1")
good("published.Table.column", self=from_(lambda: _published().table("narayanan2021_table1")), name="GPUs")
good("published.Table.where", self=from_(lambda: _published().table("narayanan2021_table1")), PP=64)
good("published.Table.row", self=from_(lambda: _published().table("narayanan2021_table1")), PP=64)
good("published.Table.source_of", self=from_(lambda: _published().table("narayanan2021_table1")),
     row=from_(lambda: _published().table("narayanan2021_table1").rows[0]))
good("published.Table", name="mine", source="here", columns=("a", "b"), rows=({"a": 1, "b": 2},), note="", units={},
     computed=())
good("published.ModelShape", name="mine", source="here", vocabulary=8, d_model=16, layers=2, heads=4, kv_heads=2,
     head_dim=4, d_ff=32)
good("published.Machine", name="mine", source="here", gpu="one", peak_flops=1e12, memory_bytes=1e9,
     memory_bandwidth=1e11, nvlink_one_way=1e10, nvlink_two_way=2e10, gpus_per_node=8)

# Meshes of ranks.


def _grid():
    from scalebook.mesh import RankGrid

    return RankGrid(tp=2, cp=1, ep=2, dp=2, pp=2)


good("mesh.RankGrid", tp=2, cp=1, ep=2, dp=2, pp=2, order="tp-cp-ep-dp-pp")
good("mesh.RankGrid.degree", self=from_(_grid), axes="tp")
good("mesh.RankGrid.groups", self=from_(_grid), axes="tp-pp")
good("mesh.RankGrid.group_of", self=from_(_grid), rank=3, axes="dp")
good("mesh.RankGrid.coordinates", self=from_(_grid), rank=3)
good("mesh.RankGrid.expert_coordinates", self=from_(_grid), rank=3)
good("mesh.RankGrid.rank", self=from_(_grid), coordinates={"tp": 1, "cp": 0, "dp": 1, "pp": 0})
good("mesh.RankGrid.nodes_of_a_group", self=from_(_grid), axes="tp", gpus_per_node=4)
good("mesh.grids", gpus=8, order="tp-cp-ep-dp-pp")

# Mixtures of experts: 6 tokens, 8 experts, 2 chosen.


def _routing():
    from scalebook import moe

    return moe.route_top_k(tensor(6, 8)(), 2)


def _layer(width=4):
    from scalebook import moe

    return moe.MoELayer(width, 4, 8, 2).double()


_logits = {"logits_TE": tensor(6, 8), "k": 2, "mask": None}
good("moe.route_top_k", **_logits, order="softmax-before", renormalise=True)
good("moe.route_sigmoid", **_logits, bias_E=tensor(8), n_group=2, topk_group=1, renormalise=True, route_scale=2.5)
good("moe.route_grouped_softmax", **_logits, n_group=2, topk_group=1, route_scale=1.0)
good("moe.route_noisy_top_k", clean_TE=tensor(6, 8), noise_TE=tensor(6, 8, seed=1), k=2,
     generator=from_(lambda: torch.Generator().manual_seed(0)), mask=None)
good("moe.route_random_second", **_logits, generator=from_(lambda: torch.Generator().manual_seed(0)))
good("moe.selection_bias_update", bias_E=tensor(8), load_E=whole(8), gamma=0.001)
good("moe.dense_gates", routing=from_(_routing))
_balanced = {"probabilities_TE": shares(6, 8), "experts_TK": whole(6, 2)}
good("moe.load_balancing_loss", **_balanced, alpha=0.01, divide_by_k=False, mask=None)
good("moe.load_balancing_gradient", **_balanced, alpha=0.01, divide_by_k=False, mask=None)
good("moe.load_balancing_per_layer", routings=from_(lambda: [_routing(), _routing()]), alpha=0.01, divide_by_k=True,
     mask=None)
good("moe.gshard_loss", **_balanced, mask=None)
good("moe.sequence_wise_loss", probabilities_BTE=shares(2, 6, 8), experts_BTK=whole(2, 6, 2), alpha=0.01, mask=None)
good("moe.importance_loss", gates_TE=shares(6, 8), weight=0.1, mask=None)
good("moe.load_loss", clean_TE=tensor(6, 8), noisy_TE=tensor(6, 8, seed=1), k=2, weight=0.1, mask=None,
     deviation_TE=from_(lambda: torch.ones(6, 8, dtype=torch.float64)))
good("moe.router_z_loss", logits_TE=tensor(6, 8), weight=0.001, mask=None)
good("moe.capacity", tokens=10, experts=4, k=2, factor=1.25)
good("moe.dispatch", experts_TK=whole(6, 2), weights_TK=shares(6, 2), experts=8, capacity=2, priority="choice")
good("moe.swiglu", x_ND=tensor(3, 4), gate_up_D=tensor(10, 4), down_D=tensor(4, 5))
good("moe.MoELayer", d_model=4, d_ff_expert=4, n_experts=4, top_k=2, gate_options=None, n_shared=1,
     capacity_factor=1.0, priority="choice")
good("moe.MoELayer.forward", self=from_(_layer), x=tensor(2, 3, 4), mask=None)
good("moe.count_parameters", shape=_model())
good("moe.flops_per_token", shape=_model(), context=128, causal=False, backward=False)
good("moe.resident_bytes", shape=_model(), bytes_per_parameter=2)
for _name in ("load_shares", "entropy", "variation", "slowest_rank", "idle_experts"):
    good(f"moe.balance.{_name}", counts=[6, 2, 0, 0])
good("moe.balance.dropped_share", counts=[6, 2, 0, 0], capacity_factor=1.5)
not_fuzzed("a result: the gates and `dispatch` make it", "moe.Routing", "moe.NoisyRouting", "moe.Dispatch")
not_fuzzed("a step of `forward`", "moe.MoELayer.route", "moe.MoELayer.plan", "moe.MoELayer.compute")

# Pipelines.


def _timeline():
    from scalebook import pipeline

    return pipeline.simulate("1f1b", 2, 4)


_times = {"forward": 1, "backward": 2, "weight": 1, "send": 0}
good("pipeline.simulate", schedule="interleaved", stages=2, microbatches=4, chunks=2, **_times)
good("pipeline.order_of", schedule="1f1b", stage=1, stages=2, microbatches=4, chunks=1)
good("pipeline.simulate_order", microbatches=2, chunks=1, placement="loop", name="mine", **_times,
     order=[[("F", 0, 0), ("F", 1, 0), ("B", 0, 0), ("B", 1, 0)]])
good("pipeline.Timeline.order", self=from_(_timeline), stage=1)
good("pipeline.Timeline.with_operations", self=from_(_timeline), operations=from_(lambda: _timeline().operations))
not_fuzzed("a result: `simulate` makes it", "pipeline.Operation", "pipeline.Pipeline", "pipeline.Timeline")
not_fuzzed("asked by the simulation for pieces that exist", "pipeline.Pipeline.piece", "pipeline.Pipeline.device",
           "pipeline.Pipeline.lag", "pipeline.Pipeline.duration")

# The planner.


def _cluster():
    from scalebook.planner import Cluster

    return Cluster(_published().machine("H100"), 16)


def _plan():
    from scalebook.planner import Plan

    return Plan(tp=2, pp=2, dp=4, batch=16, sequence=128)


def _gpt():
    from scalebook.planner import gpt

    return gpt(64, 4, 4, 1024, 256)


def _answer():
    from scalebook.planner import search

    return search(_gpt(), _cluster(), batch=16, sequence=128, micro_batches=(1,), zero=(1,))


good("planner.Cluster", machine=from_(lambda: _published().machine("H100")), gpus=16, efficiency=0.5, name="")
good("planner.Cluster.link", self=from_(_cluster), nodes=1)
good("planner.Plan", tp=2, pp=2, dp=4, batch=16, sequence=128, cp=1, ep=1, micro_batch=1, chunks=1, zero=1,
     recompute="none", sequence_parallel=True, attention="fused", overlap=True, recipe="mixed precision")
good("planner.estimate", model=from_(_gpt), cluster=from_(_cluster), plan=from_(_plan))
good("planner.search", model=from_(_gpt), cluster=from_(_cluster), batch=16, sequence=128, micro_batches=(1,),
     zero=(1,), recompute=("none",), sequence_parallel=(True,), attention="fused", overlap=True,
     recipe="mixed precision", tp=2)
good("planner.Answer.best_layouts", self=once(_answer), number=2)
good("planner.gpt", hidden=64, heads=4, layers=4, vocabulary=1024, positions=256)
good("planner.sizes_of", shape=from_(_gpt))
not_fuzzed("a result: the planner makes it", "planner.Estimate", "planner.Estimate.flops", "planner.Answer",
           "planner.Sizes")

# Quantization: a weight of 8 x 16.


def _record(bits=4, group=8):
    from scalebook import quantization

    return quantization.quantize_rtn(tensor(8, 16)(), bits, group)


def _packed():
    from scalebook import quantization

    return quantization.to_gptq_checkpoint(_checkpoint_record())


def _checkpoint_record():
    from scalebook import quantization

    return quantization.quantize_rtn(tensor(32, 32)(), 4, 32, symmetric=True)


_weight = {"weight": tensor(8, 16), "bits": 4, "group_size": 8, "symmetric": False}
good("quantization.quantize_rtn", **_weight)
good("quantization.quantize_gptq", **_weight, hessian=square(16), block_size=8, damping=0.01, act_order=False,
     static_groups=False)
good("quantization.quantize_awq", **_weight, activations_or_hessian=tensor(32, 16), kind="activations", steps=2,
     clip=True)
good("quantization.awq_curve", **_weight, activations_or_hessian=tensor(32, 16), kind=None, steps=2)
good("quantization.salient_scale_error", **_weight, activations_or_hessian=square(16), scale=2.0, share=0.1,
     kind="hessian")
good("quantization.obq", **_weight, hessian=square(16), damping=0.01, order="given")
good("quantization.awq_scales", magnitude_I=from_(lambda: torch.ones(16)), alpha=0.5)
good("quantization.clip_weight", weight_OI=tensor(8, 16), hessian_II=square(16), bits=4, group_size=8, symmetric=False,
     steps=2, smallest=0.55)
good("quantization.step_ratios", weight_OI=tensor(8, 16), scales_I=from_(lambda: torch.ones(16, dtype=torch.float64)),
     bits=4, group_size=8, symmetric=False)
good("quantization.fold_into_previous", scales_I=from_(lambda: torch.ones(16, dtype=torch.float64)),
     previous_weight=tensor(16, 8), previous_bias=tensor(16))
good("quantization.QuantizedLinear", codes=from_(lambda: _record().codes), scales=from_(lambda: _record().scales),
     zero_points=from_(lambda: _record().zero_points), bits=4, group_size=8, symmetric=False)
good("quantization.group_grid", weight_OC=tensor(8, 16), bits=4, symmetric=False)
good("quantization.to_codes", w=tensor(8), scale=1.0, zero=7.0, bits=4)
good("quantization.from_codes", codes=whole(8), scale=from_(lambda: torch.ones(8)), zero=from_(lambda: torch.ones(8)))
good("quantization.expected_error", record=from_(_record))
good("quantization.measured_error", weight=tensor(8, 16), record=from_(_record))
good("quantization.pack_codes", codes=whole(16, 4), bits=4)
good("quantization.unpack_codes", packed=from_(lambda: __import__("scalebook.quantization", fromlist="x")
                                               .pack_codes(whole(16, 4)(), 4)), bits=4)
good("quantization.to_gptq_checkpoint", record=from_(_checkpoint_record))
good("quantization.from_gptq_checkpoint", tensors=from_(_packed), bits=4, group_size=32, symmetric=True)
good("quantization.block_bits_per_weight", kind="Q4_0")
good("quantization.quantize_blocks", weight=tensor(2, 64, dtype=torch.float32), kind="Q4_0")
good("quantization.dequantize_blocks", data=from_(lambda: __import__("scalebook.quantization", fromlist="x")
                                                  .quantize_blocks(tensor(2, 64, dtype=torch.float32)(), "Q4_0")),
     kind="Q4_0")
good("quantization.accumulate_hessian", batches=from_(lambda: [tensor(5, 16)(), tensor(6, 16)()]))
good("quantization.layer_hessian", inputs_NI=tensor(32, 16))
good("quantization.damp", hessian_II=square(16), damping=0.01)
_pair = {"weight_OI": tensor(8, 16), "approximation_OI": tensor(8, 16, seed=1), "hessian_II": square(16)}
good("quantization.layer_error", **_pair)
good("quantization.row_errors", **_pair)
good("quantization.obd_saliency", weight_OI=tensor(8, 16), hessian_II=square(16))
good("quantization.obs_saliency", weight_OI=tensor(8, 16), inverse_II=square(16))
good("quantization.obq_step", row_I=tensor(4), inverse_II=square(4), q=1, target=0.5)
good("quantization.obs_step", row_I=tensor(4), inverse_II=square(4), q=1)
good("quantization.remove_from_inverse", inverse_II=square(4), q=1)
_row = {"row_I": tensor(4), "scale_I": from_(lambda: torch.ones(4, dtype=torch.float64)), "bits": 2,
        "zero_I": from_(lambda: torch.ones(4, dtype=torch.float64))}
good("quantization.obq_row", **_row, inverse_II=square(4), order="given")
good("quantization.brute_force", **_row, hessian_II=square(4))
good("quantization.downdated_inverse_rows", hessian_II=square(6))
good("quantization.upper_inverse_factor", hessian_II=square(6), damping=0.01, dtype=torch.float64)

# Ranks. `run` and `launch` are called with what they must refuse; tests/test_ranks.py starts processes.


def _hello():
    from scalebook.labs.hello import rank_sum

    return rank_sum


good("ranks.run", fn=from_(_hello), world_size=2, timeout=60, backend="gloo")
good("ranks.launch", fn=from_(_hello), world_size=2, timeout=60, backend="gloo")
good("ranks.Traffic.ring_bytes", self=from_(lambda: __import__("scalebook.ranks", fromlist="x").Traffic()), ranks=4)
not_fuzzed("a result: `count` makes it", "ranks.Traffic", "ranks.Traffic.add")

# Collectives, on one rank.
_parts = {"parts": from_(lambda: [torch.ones(3)])}
good("collectives.exchange", sends=[], receives=[])
not_fuzzed("a step of the functions below, which check", "collectives.ring_step")
good("collectives.ring_reduce_scatter", **_parts)
good("collectives.ring_all_gather", x=tensor(3), like=None)
good("collectives.ring_all_reduce", x=tensor(3))
good("collectives.ring_broadcast", x=tensor(3), source=0, pieces=2)
good("collectives.all_to_all", **_parts, like=None)
good("collectives.one_for_each_rank", name="parts", **_parts)

# Tensor parallelism, on one rank: 5 positions, 2 samples, width 8.


def _tp():
    from scalebook import tensor_parallel

    return tensor_parallel


def _shape():
    return _tp().Shape(hidden=8, heads=4, kv_heads=2, inner=8, vocabulary=16)


_region = from_(lambda: _tp().Region())
_streams = from_(lambda: _tp().RandomStreams(0, 0))
_x = {"x": tensor(5, 2, 8, dtype=torch.float32)}
good("tensor_parallel.Shape", hidden=8, heads=4, kv_heads=2, inner=8, activation="gelu", vocabulary=16, layers=1,
     dropout=0.1)
good("tensor_parallel.Shape.check", self=from_(_shape), ranks=2)
good("tensor_parallel.ParallelAttention", shape=from_(_shape), region=_region, streams=_streams)
good("tensor_parallel.ParallelAttention.forward", **_x,
     self=from_(lambda: _tp().ParallelAttention(_shape(), _tp().Region(), _tp().RandomStreams(0, 0))))
good("tensor_parallel.causal_attention", q_SBHK=tensor(5, 2, 4, 2), k_SBGK=tensor(5, 2, 2, 2),
     v_SBGK=tensor(5, 2, 2, 2), rate=0.0, stream=None)
good("tensor_parallel.ParallelBlock", shape=from_(_shape), region=_region, streams=_streams)
good("tensor_parallel.ParallelBlock.forward", **_x,
     self=from_(lambda: _tp().ParallelBlock(_shape(), _tp().Region(), _tp().RandomStreams(0, 0))))
good("tensor_parallel.ParallelBlock.of", self=from_(lambda: _tp().ParallelBlock), region=_region, streams=_streams,
     whole=from_(lambda: _tp().Block(_shape())))
good("tensor_parallel.ParallelTransformer", shape=from_(_shape), region=_region, streams=_streams, recomputed=False)
good("tensor_parallel.ParallelTransformer.of", self=from_(lambda: _tp().ParallelTransformer), region=_region,
     streams=_streams, whole=from_(lambda: _tp().Transformer(_shape())), recomputed=False)
_tokens = {"tokens_SB": whole(5, 2), "targets_SB": whole(5, 2)}
good("tensor_parallel.ParallelTransformer.forward", **_tokens,
     self=from_(lambda: _tp().ParallelTransformer(_shape(), _tp().Region(), _tp().RandomStreams(0, 0))))
good("tensor_parallel.recompute", **_x, early_stop=False,
     block=from_(lambda: _tp().ParallelBlock(_shape(), _tp().Region(), _tp().RandomStreams(0, 0))))
good("tensor_parallel.Region", group=None, sequence_parallel=True, regather=True)
for _name in ("Region.enter", "Region.leave"):
    good(f"tensor_parallel.{_name}", self=_region, **_x)
for _name, _argument in (("copy_to_ranks", "x"), ("reduce_from_ranks", "x"), ("gather_sequence", "x_sBD"),
                         ("scatter_sequence", "x_SBD")):
    good(f"tensor_parallel.{_name}", **{_argument: tensor(5, 2, 8)}, group=None)
for _name in ("own_rank", "ranks_in"):
    good(f"tensor_parallel.{_name}", group=None)
good("tensor_parallel.ParallelLayerNorm", hidden=8, region=_region)
good("tensor_parallel.sum_copies", model=from_(lambda: _tp().ParallelLayerNorm(8, _tp().Region())), group=None)
for _name in ("ColumnParallelLinear", "RowParallelLinear"):
    good(f"tensor_parallel.{_name}", width_in=8, width_out=4, region=_region, bias=True)
    good(f"tensor_parallel.{_name}.forward", self=from_(lambda n=_name: getattr(_tp(), n)(8, 4, _tp().Region())),
         **{"x" if _name.startswith("C") else "x_SBf": tensor(5, 2, 8, dtype=torch.float32)})
good("tensor_parallel.ParallelMLP", shape=from_(_shape), region=_region)
good("tensor_parallel.ParallelMLP.forward", self=from_(lambda: _tp().ParallelMLP(_shape(), _tp().Region())), **_x)
good("tensor_parallel.RandomStreams", seed=0, rank=0, device="cpu")
good("tensor_parallel.RandomStreams.set_states", self=_streams,
     states=from_(lambda: _tp().RandomStreams(0, 0).states()))
good("tensor_parallel.dropout", x=tensor(4, 3), rate=0.5, stream=from_(lambda: torch.Generator().manual_seed(0)))
good("tensor_parallel.Block", shape=from_(_shape))
good("tensor_parallel.Transformer", shape=from_(_shape))
good("tensor_parallel.Block.forward", self=from_(lambda: _tp().Block(_shape())),
     x_SBD=tensor(5, 2, 8, dtype=torch.float32))
good("tensor_parallel.Transformer.forward", self=from_(lambda: _tp().Transformer(_shape())), **_tokens)
_place = {"rank": 1, "ranks": 2}
good("tensor_parallel.shard_columns", weight_FD=tensor(8, 6), **_place)
good("tensor_parallel.shard_rows", weight_DF=tensor(6, 8), **_place)
good("tensor_parallel.shard_gate_up", gate_up=tensor(8, 6), **_place)
good("tensor_parallel.shard_qkv", qkv=tensor(16, 8), heads=4, kv_heads=2, **_place)
good("tensor_parallel.shard_sequence", x_SBD=tensor(6, 2, 8), **_place)
good("tensor_parallel.shard_state", state=from_(lambda: _tp().Block(_shape()).state_dict()), shape=from_(_shape),
     **_place)
for _name in ("columns", "rows", "gate_up", "sequence"):
    good(f"tensor_parallel.unshard_{_name}", shards=from_(lambda: [tensor(4, 6)(), tensor(4, 6, seed=1)()]))
good("tensor_parallel.unshard_qkv", heads=4, kv_heads=2, shards=from_(
    lambda: [_tp().shard_qkv(tensor(16, 8)(), 4, 2, rank, 2) for rank in range(2)]))
good("tensor_parallel.unshard_state", shape=from_(_shape), states=from_(
    lambda: [_tp().shard_state(_tp().Block(_shape()).state_dict(), _shape(), rank, 2) for rank in range(2)]))
good("tensor_parallel.VocabularyParallelEmbedding", vocabulary=16, hidden=8, region=_region)
good("tensor_parallel.VocabularyParallelEmbedding.forward", tokens_SB=whole(5, 2),
     self=from_(lambda: _tp().VocabularyParallelEmbedding(16, 8, _tp().Region())))
good("tensor_parallel.vocabulary_parallel_cross_entropy", logits_SBv=tensor(5, 2, 16), targets_SB=whole(5, 2),
     group=None)
not_fuzzed("a step of `forward`", "tensor_parallel.ParallelBlock.drop")
not_fuzzed("called by `recompute` with what `states` gave", "tensor_parallel.RandomStreams.replayed_from")

# ZeRO.


def _buckets(dtype=torch.float64):
    from scalebook import zero

    return zero.buckets_of(torch.nn.Linear(3, 2, dtype=dtype), 4, 1)


def _optimizer(kind="Zero1"):
    from scalebook import zero

    return getattr(zero, kind)(_buckets(), torch.float64)


def _parameters():
    return [torch.ones(2, 2, requires_grad=True), torch.ones(3, requires_grad=True)]


def _bucket():
    from scalebook import zero

    return zero.Bucket(_parameters(), 4)


good("zero.model_state_bytes", parameters=1000, ranks=4, stage=2, recipe="mixed precision")
good("zero.communication_bytes", parameters=1000, ranks=4, stage=3, microbatches=2, recipe="mixed precision",
     release_after_forward=True)
good("zero.passes", stage=3, microbatches=2, release_after_forward=True)
good("zero.Bucket", parameters=from_(_parameters), ranks=4)
good("zero.Bucket.flatten", self=from_(_bucket), tensors=from_(lambda: [torch.ones(2, 2), torch.ones(3)]))
good("zero.Bucket.views", self=from_(_bucket), flat_P=tensor(8))
good("zero.buckets_of", model=from_(lambda: torch.nn.Linear(3, 2)), elements=4, ranks=2)
good("zero.units_of", layers=from_(lambda: [torch.nn.Linear(3, 2)]), ranks=2)
good("zero.MixedAdam", masters=from_(lambda: [torch.ones(3)]), learning_rate=0.1, betas=(0.9, 0.999), epsilon=1e-8,
     decay=0.1)
for _name in ("DataParallel", "Zero1", "Zero2"):
    good(f"zero.{_name}", buckets=from_(_buckets), dtype=torch.float64, max_norm=1.0, group=None)
good("zero.DataParallel.step", self=from_(lambda: _optimizer("DataParallel")), microbatches=1)
good("zero.Zero3", units=from_(lambda: __import__("scalebook.zero", fromlist="x").units_of(
    [torch.nn.Linear(3, 2, dtype=torch.float64)], 1)), dtype=torch.float64, release_after_forward=True)
for _name, _methods in (("DataParallel", ""), ("Zero1", ""), ("Zero2", "reduce"), ("Zero3", "reduce gather release")):
    not_fuzzed("a step of the constructor or of `step`, with what they checked", *(
        f"zero.{_name}.{_method}" for _method in ("own", "prepare", "scale", "total", *_methods.split())))
not_fuzzed("as in `DataParallel`, on several ranks", "zero.Zero1.step", "zero.Zero2.step", "zero.Zero3.step")
not_fuzzed("what PyTorch reads and writes; tests/test_labs_zero_checkpoint.py", "zero.save", "zero.load")
not_fuzzed("called by the stages, with what they have checked", "zero.Bucket.when_ready", "zero.MixedAdam.step")

# Charts: their rows, which a reader calls through `grid`, and what takes records.


def _records():
    from scalebook.charts.moe.balance import balance_records

    return balance_records(_runs())


def _runs():
    return [{"alpha": 0.1, "steps": [20], "counts": [[[3, 1]]], "held_out": [2.5]}]


def _data(name):
    from scalebook import data

    return data.load(name)


good("charts.moe.balance.balance_records", runs=from_(_runs))
good("charts.moe.balance.balance_rows", records=from_(_records))
good("charts.moe.balance.balance_chart", records=from_(_records))
good("charts.moe.cost.preset_rows", model="Mixtral-8x7B", measure=from_(
    lambda: next(iter(__import__("scalebook.charts.moe.cost", fromlist="x").MEASURES))))
good("charts.collectives.ring.ring_sums", R=4, step=3)
good("charts.moe.routing.token_row", token="quantum", gate="kept", push=0.5)
good("charts.moe.routing.capacity_row", K=2, skew=0.5, factor=1.25)
good("charts.pipeline.gantt_row", schedule="1f1b", P=2, M=4, ratio=2)
good("charts.pipeline.slow_rows", P=2, M=4, place="middle", send=0.5)
good("charts.pipeline.trade_row", P=2, M=4, ratio=2, schedule="gpipe")
good("charts.planner.table.table_row", model="Llama-3-70B", machine="H100", gpus=128, sequence=8192, tokens=4)
good("charts.quantization.alpha.alpha_row", outliers=5, bits=4, size=64)
good("charts.quantization.measured.measured_rows", table=from_(lambda: _data("quantization")))
good("charts.quantization.measured.measured_chart", table=from_(lambda: _data("quantization")))
good("charts.zero.life.simulate_step", L=4, prefetch=1, reshard=True, gather=1)
good("charts.zero.life.life_row", L=4, prefetch=1, reshard=True, gather=1)
not_fuzzed("takes the module altair, inside its chart", "charts.quantization.grid.rounded_row")
not_fuzzed("takes an entry of its own list, inside its chart", "charts.quantization.fit.output_rows",
           "charts.tensor_parallel.slices.panel_rows")

# Labs: what they refuse before a rank is started. The test has `ranks.run` stand still.


def _lab(name):
    from importlib import import_module

    return import_module(f"scalebook.labs.{name}")


def _step():
    return _lab("pipeline").single_process_step(2)


good("labs.collective_comparison.compare", size=2, elements=64, timeout=60)
good("labs.collective_times.measure", size=2, sizes=(1024, 4096), repeats=2, timeout=60)
good("labs.collectives.move_data", size=2, timeout=60)
good("labs.collectives.ring_steps", size=2, timeout=60)
_moe = {"tokens": 8, "d_model": 4, "d_ff_expert": 4, "n_experts": 4, "top_k": 2, "n_shared": 0, "gate": "top-k",
            "skew": 0.0, "capacity_factor": None, "seed": 0, "dtype": torch.float64, "mistake": None}
good("labs.expert_parallel.expert_parallel", size=2, timeout=60, **_moe)
good("labs.expert_parallel.single_process", size=2, **_moe)
good("labs.expert_parallel.Pass.difference", self=once(
    lambda: _lab("expert_parallel").single_process(1, **_moe)), other=once(
    lambda: _lab("expert_parallel").single_process(1, **_moe)))
_options = {"microbatches": 2, "shape": None, "samples": 2, "seed": 0, "dtype": torch.float64}
good("labs.pipeline.train_step", schedule="1f1b", stages=2, **_options, chunks=None, mistake=None, timeout=60)
good("labs.pipeline.single_process_step", **_options, only=None)
good("labs.pipeline.torch_1f1b_step", stages=2, **_options, timeout=60)
good("labs.pipeline.measure_makespan", schedule="1f1b", stages=2, microbatches=2, forward_s=0.02, backward_s=0.04,
     weight_s=None, chunks=None, timeout=60)
good("labs.pipeline.Step.difference", self=once(_step), other=once(_step))
good("labs.quantized_bandwidth.time_products", bits=(32,), rows=8, columns=8, rounds=1, device="cpu")
good("labs.sparse_speed.compare", device="cpu", batches=(1,), width=8, repeats=1)
good("labs.saved_activations.saved_activations", variant="one-byte masks", batch=2, positions=8, width=8, heads=2)
good("labs.saved_activations_parallel.saved_on_ranks", size=2, batch=2, positions=8, width=16, heads=4, timeout=60)
good("labs.tensor_parallel.compare", size=2, settings=None, timeout=60)
good("labs.tensor_parallel_torch.run_plans", size=2, timeout=60)
not_fuzzed("checks as `compare` does, after seconds of prediction", "labs.tensor_parallel_wrong.run_mistakes")
not_fuzzed("takes grids, which `RankGrid` has checked", "labs.mesh.compare")
good("labs.tensor_parallel_settings.Setting", shape=from_(_shape), part="block", sequence_parallel=True, regather=True,
     recomputed=False, early_stop=False, input_gradient=True, frozen_norms=False, positions=8, samples=2, seed=0)
good("labs.tensor_parallel_settings.single_process", size=2, setting=from_(
    lambda: _lab("tensor_parallel_settings").Setting(_shape())))
_task = from_(lambda: _lab("zero_task").Task(steps=2))
good("labs.zero.single_process", task=_task)
good("labs.zero_checkpoint.train_in_two_parts", first=2, second=1, task=_task, after=1, timeout=60)
good("labs.three_d.train", task=None, timeout=60)
good("labs.three_d.single_process", task=None)
not_fuzzed("takes tasks, and `zero_task.check` is called for each; `train_in_two_parts` shows it", "labs.zero.train",
           "labs.zero_torch.torch_train")
not_fuzzed("described by its lab, whose first call checks it", "labs.zero_task.Task", "labs.three_d_task.Task",
           "labs.pipeline.Task", "labs.expert_parallel.Task", "labs.three_d_task.Run.difference",
           "labs.zero_task.Run.difference", "labs.language_model.Perplexity.difference",
           "labs.tensor_parallel_wrong.difference", "labs.zero_torch.TorchRun.difference")
