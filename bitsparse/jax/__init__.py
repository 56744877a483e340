"""bitsparse in JAX: graphs as pytrees, differentiable sums over them, packed bits. ``import bitsparse.jax as bsj`` needs JAX."""

import importlib.util

if importlib.util.find_spec("jax") is None:
    raise ImportError("bitsparse.jax needs JAX; pip install 'bitsparse[jax]'")

from bitsparse.jax.attention_kinds import attention, cosine_attention
from bitsparse.jax.bits import BitTensor, bspmm, dequantize, matmul, pack_bits, quantize
from bitsparse.jax.edges import aggregate_edges, edge_softmax, sampled_spmm, sddmm
from bitsparse.jax.graphs import Graph, graph
from bitsparse.jax.quantized import quantized_matmul, quantized_spmm
from bitsparse.jax.sums import spmm
from bitsparse.jax.tango import tango

__all__ = [
    "BitTensor",
    "Graph",
    "aggregate_edges",
    "attention",
    "bspmm",
    "cosine_attention",
    "dequantize",
    "edge_softmax",
    "graph",
    "matmul",
    "pack_bits",
    "quantize",
    "quantized_matmul",
    "quantized_spmm",
    "sampled_spmm",
    "sddmm",
    "spmm",
    "tango",
]
