"""Chapter 5: what DeepSpeed's estimators answer, for Adam in mixed precision, without activations.

They stand at the end of stage_1_and_2.py and stage3.py in deepspeed/runtime/zero; `int` in that code is the floor
here. What the numbers are made of, in bytes a parameter:

- 18 of stage 2: gradients in 16 bits (2) and again in fp32 (4), master weight (4), Adam's two moments (8).
- 18 of stage 3: weight (2), gradient in fp32 (4), master weight (4), moments (8). 4 for the largest layer: its gathered
  weights and its gradients, both in 16 bits.
- 4 on a host for each GPU: every process creates the model in fp32 before anything is sharded.
- 16 on a host: fp32 gradient, master weight and moments, when they are offloaded; 18 with the weight.

The estimator of stage 2 has two versions. Until April 2024 it answered 4 Psi + 16 Psi/N, which counts the 16-bit
gradients as not sharded, and the documentation still prints that. Since pull request 5099 it answers 2 Psi + 18 Psi/N.
"""

from sympy import Eq, Max, Mod, floor

from scalebook.formulas.core import Formula, Variable

_Psi = Variable("Psi", "parameters of the model", count=True, minimum=1, latex=r"\Psi")
_Psi_l = Variable("Psi_l", "parameters of the largest layer", count=True, minimum=1, latex=r"\Psi_\ell")
_N = Variable("N", "GPUs of all nodes", count=True, minimum=1)
_n = Variable("n", "nodes", count=True, minimum=1)
_f = Variable("f", "additional_buffer_factor: a margin, 1.5 unless told otherwise", minimum=0)
Psi, Psi_l, N, n, f = (variable.symbol for variable in (_Psi, _Psi_l, _N, _n, _f))
_whole_nodes = (Eq(Mod(N, n), 0), "N must be a multiple of n")

_STAGE2 = "deepspeedai/DeepSpeed, deepspeed/runtime/zero/stage_1_and_2.py"
_STAGE3 = "deepspeedai/DeepSpeed, deepspeed/runtime/zero/stage3.py"

# Bytes of one GPU.

stage2 = Formula("stage2", 2 * Psi + floor(18 * Psi / N), "bytes", (_Psi, _N), f"{_STAGE2}, since pull request 5099",
                 result="m_2")
stage2_before = Formula("stage2_before", 4 * Psi + floor(16 * Psi / N), "bytes", (_Psi, _N),
                        "deepspeedai/DeepSpeed, docs/code-docs/source/memory.rst", result="m_2")
stage2_offload = Formula("stage2_offload", 2 * Psi, "bytes", (_Psi,), f"{_STAGE2}: optimizer on the host",
                         result="m_2")
stage3 = Formula("stage3", 4 * Psi_l + floor(18 * Psi / N), "bytes", (_Psi, _Psi_l, _N), _STAGE3, result="m_3")
stage3_offload = Formula("stage3_offload", 4 * Psi_l + floor(2 * Psi / N), "bytes", (_Psi, _Psi_l, _N),
                         f"{_STAGE3}: optimizer on the host", result="m_3")
stage3_offload_all = Formula("stage3_offload_all", 4 * Psi_l, "bytes", (_Psi_l,),
                             f"{_STAGE3}: optimizer and weights on the host", result="m_3")

# Bytes of one host. Without zero.Init every process of the node first holds the whole model.

_whole_model = 4 * N / n
host = Formula("host", floor(_whole_model * Psi * f), "bytes", (_Psi, _N, _n, _f), f"{_STAGE2}: nothing on the host",
               requires=(_whole_nodes,), result=r"m_{\mathrm{host}}")
# The code multiplies by the GPUs of all nodes here; the documentation by those of one.
host_stage2_offload = Formula("host_stage2_offload", floor(Max(4 * N, 16) * Psi * f), "bytes", (_Psi, _N, _f),
                              f"{_STAGE2}: optimizer on the host", result=r"m_{\mathrm{host}}")
host_stage3_offload = Formula(
    "host_stage3_offload", floor(Max(_whole_model, 16 / n) * Psi * f), "bytes", (_Psi, _N, _n, _f),
    f"{_STAGE3}: optimizer on the host", requires=(_whole_nodes,), result=r"m_{\mathrm{host}}",
)
host_stage3_offload_all = Formula(
    "host_stage3_offload_all", floor(Max(_whole_model, 18 / n) * Psi * f), "bytes", (_Psi, _N, _n, _f),
    f"{_STAGE3}: optimizer and weights on the host", requires=(_whole_nodes,), result=r"m_{\mathrm{host}}",
)
# With zero.Init each layer is sharded as soon as it is made.
host_stage3_init = Formula("host_stage3_init", floor(_whole_model * Psi_l * f), "bytes", (_Psi_l, _N, _n, _f),
                           f"{_STAGE3}: nothing on the host, zero.Init", requires=(_whole_nodes,),
                           result=r"m_{\mathrm{host}}")
host_stage3_init_offload = Formula("host_stage3_init_offload", floor(16 * Psi * f / n), "bytes", (_Psi, _n, _f),
                                   f"{_STAGE3}: optimizer on the host, zero.Init", result=r"m_{\mathrm{host}}")
host_stage3_init_offload_all = Formula("host_stage3_init_offload_all", floor(18 * Psi * f / n), "bytes",
                                       (_Psi, _n, _f), f"{_STAGE3}: optimizer and weights on the host, zero.Init",
                                       result=r"m_{\mathrm{host}}")
