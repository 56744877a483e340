"""bitsparse in PyTorch: graphs as modules, differentiable sums over them, layers. ``import bitsparse.torch as bst`` needs PyTorch."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ImportError("bitsparse.torch needs PyTorch; pip install 'bitsparse[torch]'")

from bitsparse.torch.accelerate import LayerReport, accelerate, report
from bitsparse.torch.attention_kinds import attention, cosine_attention, gatv2_attention
from bitsparse.torch.attention_layers import AGNNConv, GATConv, GATv2Conv
from bitsparse.torch.binary import BinaryGCN, BinarySAGE, BinarySAINT, SignLinear
from bitsparse.torch.buffers import Buffer
from bitsparse.torch.distributed import ShardedSum
from bitsparse.torch.graph import Graph
from bitsparse.torch.layers import GCNConv, GINConv, SAGEConv
from bitsparse.torch.loader import Batch, BatchLoader
from bitsparse.torch.low_bits import LowBitModule
from bitsparse.torch.quantization import Quantization, Tango
from bitsparse.torch.sampled import SampledGradient, SampledGraph, sampled_gradient
from bitsparse.torch.sums import spmm
from bitsparse.torch.tango import quantize_, unquantize_

__all__ = [
    "AGNNConv",
    "Batch",
    "BatchLoader",
    "BinaryGCN",
    "BinarySAGE",
    "BinarySAINT",
    "Buffer",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "Graph",
    "LayerReport",
    "LowBitModule",
    "Quantization",
    "SAGEConv",
    "SampledGradient",
    "SampledGraph",
    "ShardedSum",
    "SignLinear",
    "Tango",
    "accelerate",
    "attention",
    "cosine_attention",
    "gatv2_attention",
    "quantize_",
    "report",
    "sampled_gradient",
    "spmm",
    "unquantize_",
]
