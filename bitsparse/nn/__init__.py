"""Graph networks on bitsparse arrays: in full precision, on low-bit integers, on single bits, and over sampled edges."""

from bitsparse.graph.operand import Graph
from bitsparse.graph.packets import PackedEpoch
from bitsparse.nn.binary.functional import bmm_bspmm, bmm_bspmm_add
from bitsparse.nn.binary.layers import standardized
from bitsparse.nn.binary.linear import BinaryLinear
from bitsparse.nn.binary.models import BinaryGCN, BinarySAGE, BinarySAINT, load_binary
from bitsparse.nn.binary.network import BinaryModel
from bitsparse.nn.binary.plan import BinaryPlan
from bitsparse.nn.binary.tuner import Candidate, Tuned, tune
from bitsparse.nn.binary.variants import Setting
from bitsparse.nn.cluster.report import ClusterReport
from bitsparse.nn.cluster.run import ClusterRunner
from bitsparse.nn.dense import Dense, LayerNorm
from bitsparse.nn.features import Features
from bitsparse.nn.full.network import Network, random_network
from bitsparse.nn.full.training import train
from bitsparse.nn.layers import Attention, Layer, Neighbours
from bitsparse.nn.lowbit.calibrate import quantize_network
from bitsparse.nn.lowbit.network import LowBitNetwork, load_lowbit
from bitsparse.nn.lowbit.plan import LowBitPlan
from bitsparse.nn.lowbit.tuner import TunedBits, tune_bits
from bitsparse.nn.pyg.models import from_pyg
from bitsparse.nn.pyg.state_dict import load_network, load_state_dict
from bitsparse.nn.sampled.network import SampledNetwork
from bitsparse.nn.sampled.quality import Quality, QualityCell, SamplingRate, sampling_quality, sampling_rate

__all__ = [
    "Attention",
    "BinaryGCN",
    "BinaryLinear",
    "BinaryModel",
    "BinaryPlan",
    "BinarySAGE",
    "BinarySAINT",
    "Candidate",
    "ClusterReport",
    "ClusterRunner",
    "Dense",
    "Features",
    "Graph",
    "Layer",
    "LayerNorm",
    "LowBitNetwork",
    "LowBitPlan",
    "Neighbours",
    "Network",
    "PackedEpoch",
    "Quality",
    "QualityCell",
    "SampledNetwork",
    "SamplingRate",
    "Setting",
    "Tuned",
    "TunedBits",
    "bmm_bspmm",
    "bmm_bspmm_add",
    "from_pyg",
    "load_binary",
    "load_lowbit",
    "load_network",
    "load_state_dict",
    "quantize_network",
    "random_network",
    "sampling_quality",
    "sampling_rate",
    "standardized",
    "train",
    "tune",
    "tune_bits",
]
