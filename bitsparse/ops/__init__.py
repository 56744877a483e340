"""The public functions: each checks its arguments, chooses a kernel and calls the backend."""

from bitsparse.arrays.base import operators
from bitsparse.ops.binary.bmm import bmm, plan_bmm
from bitsparse.ops.binary.bmm_plan import BmmPlan
from bitsparse.ops.binary.bspmm import BspmmPlan, bspmm, plan_bspmm
from bitsparse.ops.binary.combine import add, concat
from bitsparse.ops.bits.pack import dequantize, pack_bits, quantize, stochastic_round, unpack_bits
from bitsparse.ops.bits.packed_bytes import from_packbits, from_rdkit
from bitsparse.ops.bits.quality import choose_bits, quantization_error
from bitsparse.ops.edges.attention import AttentionState, attention, cosine_attention
from bitsparse.ops.edges.attention_vjp import attention_vjp
from bitsparse.ops.edges.cosine_vjp import cosine_attention_vjp
from bitsparse.ops.edges.gatv2 import gatv2_scores, gatv2_scores_vjp
from bitsparse.ops.edges.sddmm import edge_softmax, sddmm
from bitsparse.ops.edges.vjp import edge_softmax_vjp, sddmm_vjp
from bitsparse.ops.finish.epilogue import BatchNorm, Epilogue
from bitsparse.ops.matmul.matmul import matmul, plan_matmul
from bitsparse.ops.matmul.plan import MatmulPlan
from bitsparse.ops.quantized.cache import QuantCache
from bitsparse.ops.quantized.matmul import plan_quantized_matmul, quantized_matmul
from bitsparse.ops.quantized.plan import QuantizedMatmulPlan, QuantizedProduct
from bitsparse.ops.quantized.spmm import quantized_spmm
from bitsparse.ops.quantized.vjp import quantized_matmul_vjp, quantized_spmm_vjp
from bitsparse.ops.sampling.sample import EdgeSample, edge_sample
from bitsparse.ops.sampling.spmm import SampledPlan, plan_sampled_spmm, sampled_spmm
from bitsparse.ops.sampling.vjp import sampled_spmm_vjp
from bitsparse.ops.search.nearest import NearestPlan, nearest, plan_nearest
from bitsparse.ops.search.pairs import pairs, pairs_iter
from bitsparse.ops.spmm.plan import SpmmPlan
from bitsparse.ops.spmm.spmm import aggregate_edges, plan_spmm, spmm
from bitsparse.ops.spmm.vjp import aggregate_edges_vjp, spmm_vjp

operators.matmul, operators.spmm, operators.dequantize = matmul, spmm, dequantize

__all__ = [
    "AttentionState",
    "BatchNorm",
    "BmmPlan",
    "BspmmPlan",
    "EdgeSample",
    "Epilogue",
    "MatmulPlan",
    "NearestPlan",
    "QuantCache",
    "QuantizedMatmulPlan",
    "QuantizedProduct",
    "SampledPlan",
    "SpmmPlan",
    "add",
    "aggregate_edges",
    "aggregate_edges_vjp",
    "attention",
    "attention_vjp",
    "bmm",
    "bspmm",
    "choose_bits",
    "concat",
    "cosine_attention",
    "cosine_attention_vjp",
    "dequantize",
    "edge_sample",
    "edge_softmax",
    "edge_softmax_vjp",
    "from_packbits",
    "from_rdkit",
    "gatv2_scores",
    "gatv2_scores_vjp",
    "matmul",
    "nearest",
    "pack_bits",
    "pairs",
    "pairs_iter",
    "plan_bmm",
    "plan_bspmm",
    "plan_matmul",
    "plan_nearest",
    "plan_quantized_matmul",
    "plan_sampled_spmm",
    "plan_spmm",
    "quantization_error",
    "quantize",
    "quantized_matmul",
    "quantized_matmul_vjp",
    "quantized_spmm",
    "quantized_spmm_vjp",
    "sampled_spmm",
    "sampled_spmm_vjp",
    "sddmm",
    "sddmm_vjp",
    "spmm",
    "spmm_vjp",
    "stochastic_round",
    "unpack_bits",
]
