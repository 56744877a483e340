"""bitsparse in PyTorch: graphs as modules, differentiable sums over them, layers. ``import bitsparse.torch as bst`` needs PyTorch."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ImportError("bitsparse.torch needs PyTorch; pip install 'bitsparse[torch]'")

from bitsparse.torch.accelerate import LayerReport, accelerate, report
from bitsparse.torch.attention_kinds import attention, cosine_attention, gatv2_attention
from bitsparse.torch.buffers import Buffer
from bitsparse.torch.graph import Graph
from bitsparse.torch.layers import AGNNConv, GATConv, GATv2Conv, GCNConv, GINConv, SAGEConv
from bitsparse.torch.sums import spmm

__all__ = [
    "AGNNConv",
    "Buffer",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "Graph",
    "LayerReport",
    "SAGEConv",
    "accelerate",
    "attention",
    "cosine_attention",
    "gatv2_attention",
    "report",
    "spmm",
]
