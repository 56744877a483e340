"""The public functions: check the arguments, choose a kernel, call the backend."""

from bitsparse.arrays.operators import hang
from bitsparse.ops.binary.bmm import bmm, plan_bmm
from bitsparse.ops.binary.bmm_plan import BmmPlan
from bitsparse.ops.binary.bspmm import BspmmPlan, bspmm, plan_bspmm
from bitsparse.ops.binary.combine import add, concat
from bitsparse.ops.bits.pack import dequantize, pack_bits, quantize, stochastic_round, unpack_bits
from bitsparse.ops.bits.quality import choose_bits, quantization_error
from bitsparse.ops.edges.attention import attention
from bitsparse.ops.edges.cosine_attention import cosine_attention
from bitsparse.ops.edges.sddmm import edge_softmax, sddmm
from bitsparse.ops.finish.epilogue import BatchNorm, Epilogue
from bitsparse.ops.matmul.matmul import matmul, plan_matmul
from bitsparse.ops.matmul.plan import MatmulPlan
from bitsparse.ops.quantized.cache import CacheInfo, QuantCache
from bitsparse.ops.quantized.matmul import plan_quantized_matmul, quantized_matmul
from bitsparse.ops.quantized.plan import QuantizedMatmulPlan, QuantizedProduct
from bitsparse.ops.sampling.sample import EdgeSample, edge_sample
from bitsparse.ops.sampling.spmm import SampledPlan, plan_sampled_spmm, sampled_spmm
from bitsparse.ops.spmm.spmm import SpmmPlan, aggregate_edges, plan_spmm, spmm

hang(matmul=matmul, spmm=spmm, dequantize=dequantize)

__all__ = [
    "BatchNorm",
    "BmmPlan",
    "BspmmPlan",
    "CacheInfo",
    "EdgeSample",
    "Epilogue",
    "MatmulPlan",
    "QuantCache",
    "QuantizedMatmulPlan",
    "QuantizedProduct",
    "SampledPlan",
    "SpmmPlan",
    "add",
    "aggregate_edges",
    "attention",
    "bmm",
    "bspmm",
    "choose_bits",
    "concat",
    "cosine_attention",
    "dequantize",
    "edge_sample",
    "edge_softmax",
    "matmul",
    "pack_bits",
    "plan_bmm",
    "plan_bspmm",
    "plan_matmul",
    "plan_quantized_matmul",
    "plan_sampled_spmm",
    "plan_spmm",
    "quantization_error",
    "quantize",
    "quantized_matmul",
    "sampled_spmm",
    "sddmm",
    "spmm",
    "stochastic_round",
    "unpack_bits",
]
