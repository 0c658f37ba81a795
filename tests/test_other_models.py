"""Models and figures that stand in no table of the book: parameters to the digit, FLOPs, caches, states, files.

Parameters are what each repository on the Hugging Face hub counts in its files; the shapes are its config.json's.
"""

from dataclasses import replace

import pytest

from scalebook import published
from scalebook.formulas import collectives, planner, quantization, tensor_parallel
from scalebook.moe import count_parameters, flops_per_token
from scalebook.planner import gpt, sizes_of
from scalebook.published import ModelShape

QKV_BIAS = {"attention_bias": True}
TIED = {"tied_embeddings": True}
HEAD_NORM, FULL_NORM = {"qk_norm": "head"}, {"qk_norm": "full"}
GEMMA = {**TIED, "head_dim": 256}
GEMMA_2 = {**GEMMA, "norms_per_layer": 4}
UNTIED_GPT = {"tied_embeddings": False, "learned_positions": 0}
BLOOM = {"learned_positions": 0, "embedding_norm": True}
FALCON = {**TIED, "ffn_mats": 2, "norm": "layernorm", "head_dim": 64}
PALM = {**TIED, "head_dim": 256, "norm": "layernorm-without-bias", "norms_per_layer": 1}


def llama(vocabulary, width, layers, heads, kv_heads, d_ff, **more):
    """RMSNorm, gated feed-forward, rotary positions, no biases, unless told otherwise."""
    values = {"head_dim": width // heads, **more}
    return ModelShape(name="other", source="config.json", vocabulary=vocabulary, d_model=width, layers=layers,
                      heads=heads, kv_heads=kv_heads, d_ff=d_ff, **values)


def sparse(vocabulary, width, layers, heads, kv_heads, experts, top_k, d_ff_expert, **more):
    """The same with experts."""
    return llama(vocabulary, width, layers, heads, kv_heads, more.pop("d_ff", 0), experts=experts, top_k=top_k,
                 d_ff_expert=d_ff_expert, scoring="softmax", **more)


def gpt_2(vocabulary, width, layers, heads, positions=2050, **more):
    """LayerNorm, GELU, biases, learned positions, tied embedding; OPT has a table of 2050 rows."""
    return replace(gpt(width, heads, layers, vocabulary, positions), **more)


def latent(vocabulary, width, layers, heads, experts, top_k, d_ff_expert, d_ff, **more):
    """DeepSeek's latent attention and shared experts, the first layers dense."""
    return sparse(vocabulary, width, layers, heads, heads, experts, top_k, d_ff_expert, d_ff=d_ff, head_dim=0,
                  kv_lora_rank=512, qk_nope=128, qk_rope=64, v_head=128, **more)


DENSE = [
    ("Llama-2-7b", llama(32000, 4096, 32, 32, 32, 11008), 6_738_415_616),
    ("Llama-2-13b", llama(32000, 5120, 40, 40, 40, 13824), 13_015_864_320),
    ("Llama-2-70b", llama(32000, 8192, 80, 64, 8, 28672), 68_976_648_192),
    ("LLaMA-33B", llama(32000, 6656, 60, 52, 52, 17920), 32_528_943_616),
    ("LLaMA-65B", llama(32000, 8192, 80, 64, 64, 22016), 65_285_660_672),
    ("Llama-3.1-405B", llama(128256, 16384, 126, 128, 8, 53248), 405_853_388_800),
    ("Llama-3.2-1B", llama(128256, 2048, 16, 32, 8, 8192, **TIED), 1_235_814_400),
    ("Llama-3.2-3B", llama(128256, 3072, 28, 24, 8, 8192, **TIED), 3_212_749_824),
    ("Mistral-7B-v0.1", llama(32000, 4096, 32, 32, 8, 14336), 7_241_732_096),
    ("Mistral-7B-v0.3", llama(32768, 4096, 32, 32, 8, 14336), 7_248_023_552),
    ("Mistral-Nemo-Base-2407", llama(131072, 5120, 40, 32, 8, 14336, head_dim=128), 12_247_782_400),
    ("Qwen2.5-0.5B", llama(151936, 896, 24, 14, 2, 4864, **TIED, **QKV_BIAS), 494_032_768),
    ("Qwen2.5-1.5B", llama(151936, 1536, 28, 12, 2, 8960, **TIED, **QKV_BIAS), 1_543_714_304),
    ("Qwen2.5-3B", llama(151936, 2048, 36, 16, 2, 11008, **TIED, **QKV_BIAS), 3_085_938_688),
    ("Qwen2.5-7B", llama(152064, 3584, 28, 28, 4, 18944, **QKV_BIAS), 7_615_616_512),
    ("Qwen2.5-14B", llama(152064, 5120, 48, 40, 8, 13824, **QKV_BIAS), 14_770_033_664),
    ("Qwen2.5-32B", llama(152064, 5120, 64, 40, 8, 27648, **QKV_BIAS), 32_763_876_352),
    ("Qwen2.5-72B", llama(152064, 8192, 80, 64, 8, 29568, **QKV_BIAS), 72_706_203_648),
    ("Qwen3-0.6B", llama(151936, 1024, 28, 16, 8, 3072, head_dim=128, **TIED, **HEAD_NORM), 596_049_920),
    ("Qwen3-8B", llama(151936, 4096, 36, 32, 8, 12288, head_dim=128, **HEAD_NORM), 8_190_735_360),
    ("Qwen3-32B", llama(151936, 5120, 64, 64, 8, 25600, head_dim=128, **HEAD_NORM), 32_762_123_264),
    ("gemma-2b", llama(256000, 2048, 18, 8, 1, 16384, **GEMMA), 2_506_172_416),
    ("gemma-7b", llama(256000, 3072, 28, 16, 16, 24576, **GEMMA), 8_537_680_896),
    ("gemma-2-2b", llama(256000, 2304, 26, 8, 4, 9216, **GEMMA_2), 2_614_341_888),
    ("gemma-2-9b", llama(256000, 3584, 42, 16, 8, 14336, **GEMMA_2), 9_241_705_984),
    ("gemma-2-27b", llama(256000, 4608, 46, 32, 16, 36864, **{**GEMMA_2, "head_dim": 128}), 27_227_128_320),
    ("Phi-3-mini-4k-instruct", llama(32064, 3072, 32, 32, 32, 8192), 3_821_079_552),
    ("OLMo-2-1124-7B", llama(100352, 4096, 32, 32, 32, 11008, **FULL_NORM), 7_298_617_344),
    ("OLMo-2-1124-13B", llama(100352, 5120, 40, 40, 40, 13824, **FULL_NORM), 13_716_198_400),
    ("OLMo-2-0325-32B", llama(100352, 5120, 64, 40, 8, 27648, **FULL_NORM), 32_234_279_936),
    ("gpt2", gpt_2(50257, 768, 12, 12, 1024), 124_439_808),
    ("gpt2-xl", gpt_2(50257, 1600, 48, 25, 1024), 1_557_611_200),
    ("gpt-neox-20b", gpt_2(50432, 6144, 44, 64, **UNTIED_GPT), 20_554_567_680),
    ("pythia-6.9b", gpt_2(50432, 4096, 32, 32, **UNTIED_GPT), 6_857_302_016),
    ("pythia-12b", gpt_2(50688, 5120, 36, 40, **UNTIED_GPT), 11_846_072_320),
    ("opt-125m", gpt_2(50272, 768, 12, 12), 125_239_296),
    ("opt-6.7b", gpt_2(50272, 4096, 32, 32), 6_658_473_984),
    ("opt-13b", gpt_2(50272, 5120, 40, 40), 12_853_473_280),
    ("opt-30b", gpt_2(50272, 7168, 48, 56), 29_974_540_288),
    ("bloom-560m", gpt_2(250880, 1024, 24, 16, **BLOOM), 559_214_592),
    ("bloom-7b1", gpt_2(250880, 4096, 30, 32, **BLOOM), 7_069_016_064),
    ("bloom", published.model("BLOOM-176B"), 176_247_271_424),
    ("falcon-7b", llama(65024, 4544, 32, 71, 1, 18176, **FALCON, norms_per_layer=1), 6_921_720_704),
    ("falcon-40b", llama(65024, 8192, 60, 128, 8, 32768, **FALCON), 41_303_293_952),
    ("falcon-180B", llama(65024, 14848, 80, 232, 8, 59392, **{**FALCON, "tied_embeddings": False}), 179_522_565_120),
]
SHARED = {"attention_bias": True, "shared_expert_gate": True}
MOE = [
    ("Mixtral-8x22B-Instruct-v0.1", sparse(32768, 6144, 56, 48, 8, 8, 2, 16384), 140_630_071_296, 39.2),
    ("OLMoE-1B-7B-0924", sparse(50304, 2048, 16, 16, 16, 64, 8, 1024, **FULL_NORM), 6_919_161_856, 1.3),
    ("Qwen1.5-MoE-A2.7B", sparse(151936, 2048, 24, 16, 16, 60, 4, 1408, shared_experts=4, **SHARED),
     14_315_784_192, 2.7),
    ("deepseek-moe-16b-base", sparse(102400, 2048, 28, 16, 16, 64, 6, 1408, d_ff=10944, shared_experts=2,
                                     dense_layers=1), 16_375_728_128, 2.8),
    ("DeepSeek-V2-Lite", latent(102400, 2048, 27, 16, 64, 6, 1408, 10944, shared_experts=2, dense_layers=1),
     15_706_484_224, None),  # its paper says 2.4 billion active, without the input embedding and rounded down
]


@pytest.mark.parametrize(("name", "shape", "total"), DENSE, ids=[row[0] for row in DENSE])
def test_a_dense_model_of_the_hub_has_exactly_its_parameters(name, shape, total):
    count = count_parameters(shape)
    assert count.total == count.active == total
    sizes = sizes_of(shape)  # and the planner's stages hold as many
    tables = shape.vocabulary * shape.d_model * (1 if shape.tied_embeddings else 2)
    assert sizes.L * (sizes.Psi_t + sizes.Psi_c) + tables + sizes.positions + sizes.norm == pytest.approx(total, abs=1)


@pytest.mark.parametrize(("name", "shape", "total", "active"), MOE, ids=[row[0] for row in MOE])
def test_a_mixture_of_experts_of_the_hub_has_exactly_its_parameters(name, shape, total, active):
    count = count_parameters(shape)
    assert count.total == total
    if active is None:
        assert int(count.active_without_input_embedding / 1e8) == 24
    else:
        assert round(count.active / 1e9, 1) == active


@pytest.mark.parametrize(("shape", "printed"), [
    (llama(256000, 4096, 32, 16, 1, 16384, **PALM), 8.63), (llama(256000, 8192, 64, 32, 1, 32768, **PALM), 62.50),
    (llama(256000, 18432, 118, 48, 1, 73728, **PALM), 540.35)])
def test_palm_has_the_parameters_of_its_table_1(shape, printed):
    """arXiv:2204.02311, Table 1."""
    assert count_parameters(shape).total / 1e9 == pytest.approx(printed, abs=0.01)


def test_kimi_k2_and_llama_4_have_the_parameters_of_their_names():
    """arXiv:2507.20534, Table 2; meta-llama/Llama-4-Scout-17B-16E and Llama-4-Maverick-17B-128E."""
    kimi = count_parameters(latent(163840, 7168, 61, 64, 384, 8, 2048, 18432, q_lora_rank=1536, shared_experts=1,
                                   dense_layers=1))
    scout = sparse(202048, 5120, 48, 40, 8, 16, 1, 8192, shared_experts=1)
    maverick = replace(scout, experts=128, d_ff=16384, moe_every=2)
    assert kimi.total == 1_026_408_209_408  # the hub's 1,026,408,232,448 less 60 x 384 selection biases
    for shape, total in ((scout, 108), (maverick, 401)):
        count = count_parameters(shape)
        assert (round(count.total / 1e9), round(count.active / 1e9)) == (total, 17)


@pytest.mark.parametrize(("name", "printed"), [("DeepSeek-V2", 155), ("DeepSeek-V3", 250)])
def test_deepseeks_training_costs_what_its_table_2_prints_for_a_token(name, printed):
    """arXiv:2505.09343, Table 2: GFLOPs a token, sequences of 4096 tokens, causal attention."""
    flops = flops_per_token(published.model(name), 4096, causal=True, backward=True).total
    assert round(flops / 10**9) == printed


def test_palms_model_flops_utilization_follows_from_its_tokens_per_second():
    """arXiv:2204.02311, Table 3 and appendix B: 238.3 thousand tokens/s on 6144 chips of 275 TFLOP/s are 46.2%."""
    palm = llama(256000, 18432, 118, 48, 1, 73728, **PALM)
    flops = flops_per_token(palm, 2048, backward=True).total
    assert round(100 * 238_300 * float(flops) / (6144 * 275e12), 1) == 46.2


@pytest.mark.parametrize(("layers", "heads", "width", "printed"), [
    (61, 1, 576 / 2, 70.272), (80, 8, 128, 327.680), (126, 8, 128, 516.096)])
def test_the_cache_of_a_token_is_the_published_one(layers, heads, width, printed):
    """arXiv:2505.09343, Table 1, kB: DeepSeek-V3's latent of 512 and rotary key of 64, Qwen-2.5 72B, Llama-3.1 405B."""
    cache = quantization.kv_bytes_per_token(L=layers, G=heads, d_h=int(width), p_kv=2)
    assert cache / 1000 == printed


@pytest.mark.parametrize(("width", "layers", "heads", "saved", "extra"), [
    (12288, 96, 96, 70, 2.7), (20480, 105, 128, 65, 1.6)])
def test_what_selective_recomputation_saves_and_costs(width, layers, heads, saved, extra):
    """arXiv:2205.05198, section 5: percent of the activations and of the FLOPs, of GPT-3 and MT-NLG."""
    kept = tensor_parallel.activations_sequence_parallel(s=2048, b=1, h=width, a=heads, t=8)
    selective = tensor_parallel.activations_sequence_parallel_selective(s=2048, b=1, h=width, t=8)
    sizes = {"b": 1, "s": 2048, "L": layers, "h": width, "V": 51200}
    more = planner.hardware_flops_korthikanti(**sizes) / tensor_parallel.flops_model(**sizes) - 1
    assert round(100 * (1 - float(selective / kept))) == saved
    assert round(100 * float(more), 1) == extra


# Quantized files, GB: bits, group, and what the cards of TheBloke's repositories print (files of AutoGPTQ).
FILES = [("7b", 4, 128, 3.90), ("7b", 4, 64, 4.02), ("7b", 4, 32, 4.28), ("13b", 4, 128, 7.26), ("13b", 4, 64, 7.51),
         ("13b", 4, 32, 8.00), ("70b", 4, 128, 36.65), ("70b", 4, 64, 37.99), ("70b", 4, 32, 40.66),
         ("70b", 3, 128, 28.03), ("70b", 3, 64, 29.30)]


@pytest.mark.parametrize(("size", "bits", "group", "printed"), FILES)
def test_a_packed_llama_2_has_the_size_of_its_file(size, bits, group, printed):
    """Codes, scales and zero-points; the files also hold a group for each input and a bias of zeros for each output."""
    shape = next(shape for name, shape, _ in DENSE if name == f"Llama-2-{size}")
    count = count_parameters(shape)
    linear = count.by_part["attention"].total + count.by_part["dense feed-forward"].total
    beta = quantization.bits_per_weight(b=bits, z=bits, g=group)
    weights = quantization.model_bytes(N_q=linear, beta=beta, N_r=count.total - linear, p=2)
    inputs = 6 * shape.d_model + shape.d_ff
    outputs = 3 * shape.d_model + 2 * shape.kv_heads * shape.head_dim + 2 * shape.d_ff
    beside = shape.layers * (4 * inputs + 2 * outputs)
    assert float(weights + beside) / 1e9 == pytest.approx(printed, abs=0.006)


def test_eight_h100s_all_reduce_at_the_bus_bandwidth_that_nccl_tests_prints():
    """NVIDIA/nccl-tests, doc/PERFORMANCE.md: bus bandwidth is 2 (n - 1) / n of the algorithm's."""
    assert collectives.bus_bandwidth_all_reduce(R=8, S=8 * 2**30, T=1) == 8 * 2**30 * 7 / 4
    assert collectives.bus_bandwidth_all_gather(R=8, S=8 * 2**30, T=1) == 8 * 2**30 * 7 / 8
