"""Graph networks on bitsparse arrays: a GCN trained in full precision, the same model on low-bit integers, and binary networks."""

from bitsparse.nn.binary import BinaryGCN, BinaryModel
from bitsparse.nn.binary_files import load_binary
from bitsparse.nn.binary_linear import BinaryLinear
from bitsparse.nn.binary_own import BinarySAGE, BinarySAINT
from bitsparse.nn.binary_plan import BinaryPlan
from bitsparse.nn.binary_products import standardized
from bitsparse.nn.binary_variants import Setting
from bitsparse.nn.functional import bmm_bspmm, bmm_bspmm_add
from bitsparse.nn.gcn import GCN, train_gcn
from bitsparse.nn.inputs import Features, Propagation
from bitsparse.nn.quality import Quality, QualityCell, SamplingRate, sampling_quality, sampling_rate
from bitsparse.nn.quantized import QuantizedGCN, quantized_gcn
from bitsparse.nn.sage import SAGE, MeanNeighbours, train_sage
from bitsparse.nn.sampled import SampledNetwork
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
    "Features",
    "MeanNeighbours",
    "Propagation",
    "Quality",
    "QualityCell",
    "QuantizedGCN",
    "SampledNetwork",
    "SamplingRate",
    "Setting",
    "Tuned",
    "bmm_bspmm",
    "bmm_bspmm_add",
    "load_binary",
    "quantized_gcn",
    "sampling_quality",
    "sampling_rate",
    "standardized",
    "train_gcn",
    "train_sage",
    "tune",
]
