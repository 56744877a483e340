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
from bitsparse.nn.lowbit import LowBitNetwork
from bitsparse.nn.lowbit_calibration import quantize_network
from bitsparse.nn.lowbit_plan import LowBitPlan
from bitsparse.nn.lowbit_tuner import TunedBits, tune_bits
from bitsparse.nn.network import Dense, Layer, Network, random_network
from bitsparse.nn.operand import GraphOperand
from bitsparse.nn.quantized import QuantizedGCN, quantized_gcn
from bitsparse.nn.state_dict import load_network, load_state_dict
from bitsparse.nn.tuner import Candidate, Tuned, tune

__all__ = [
    "GCN",
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
    "LowBitNetwork",
    "LowBitPlan",
    "Network",
    "PackedEpoch",
    "Propagation",
    "QuantizedGCN",
    "Setting",
    "Tuned",
    "TunedBits",
    "bmm_bspmm",
    "bmm_bspmm_add",
    "load_binary",
    "load_network",
    "load_state_dict",
    "quantize_network",
    "quantized_gcn",
    "random_network",
    "standardized",
    "train_gcn",
    "tune",
    "tune_bits",
]
