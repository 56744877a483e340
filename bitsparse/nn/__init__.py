"""Graph networks on bitsparse arrays: a GCN trained in full precision and the same model on low-bit integers."""

from bitsparse.nn.gcn import GCN, train_gcn
from bitsparse.nn.inputs import Features, Propagation
from bitsparse.nn.quantized import QuantizedGCN, quantized_gcn

__all__ = ["GCN", "Features", "Propagation", "QuantizedGCN", "quantized_gcn", "train_gcn"]
