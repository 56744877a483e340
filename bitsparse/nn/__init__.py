"""Graph networks on bitsparse arrays: a GCN trained in full precision, the same model on low-bit integers, and binary networks."""

from bitsparse.nn.binary import BinaryGCN, BinaryModel
from bitsparse.nn.binary_files import load_binary
from bitsparse.nn.binary_linear import BinaryLinear
from bitsparse.nn.binary_own import BinarySAGE, BinarySAINT
from bitsparse.nn.binary_plan import BinaryPlan
from bitsparse.nn.binary_products import standardized
from bitsparse.nn.binary_variants import Setting
from bitsparse.nn.cluster import ClusterRunner, PackedEpoch
from bitsparse.nn.cluster_report import ClusterReport
from bitsparse.nn.functional import bmm_bspmm, bmm_bspmm_add
from bitsparse.nn.gcn import GCN, train_gcn
from bitsparse.nn.inputs import Features, Propagation
from bitsparse.nn.layers import Dense, Layer, LayerNorm, Neighbours
from bitsparse.nn.lowbit import LowBitNetwork
from bitsparse.nn.lowbit_calibration import quantize_network
from bitsparse.nn.lowbit_plan import LowBitPlan
from bitsparse.nn.lowbit_tuner import TunedBits, tune_bits
from bitsparse.nn.network import Network
from bitsparse.nn.operand import GraphOperand
from bitsparse.nn.pyg import from_pyg
from bitsparse.nn.quality import Quality, QualityCell, SamplingRate, sampling_quality, sampling_rate
from bitsparse.nn.quantized import QuantizedGCN, quantized_gcn
from bitsparse.nn.sage import SAGE, MeanNeighbours, train_sage
from bitsparse.nn.sampled import SampledNetwork
from bitsparse.nn.seeded import random_network
from bitsparse.nn.state_dict import load_network, load_state_dict
from bitsparse.nn.tuner import Candidate, Tuned, tune

__all__ = [
    "GCN",
    "SAGE",
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
    "GraphOperand",
    "Layer",
    "LayerNorm",
    "LowBitNetwork",
    "LowBitPlan",
    "MeanNeighbours",
    "Neighbours",
    "Network",
    "PackedEpoch",
    "Propagation",
    "Quality",
    "QualityCell",
    "QuantizedGCN",
    "SampledNetwork",
    "SamplingRate",
    "Setting",
    "Tuned",
    "TunedBits",
    "bmm_bspmm",
    "bmm_bspmm_add",
    "from_pyg",
    "load_binary",
    "load_network",
    "load_state_dict",
    "quantize_network",
    "quantized_gcn",
    "random_network",
    "sampling_quality",
    "sampling_rate",
    "standardized",
    "train_gcn",
    "train_sage",
    "tune",
    "tune_bits",
]
