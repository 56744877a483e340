"""The array types."""

from bitsparse.arrays.assemble import block_diag, eye, hstack, issparse, kron, random, tril, triu, vstack
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.frdc import FRDC
from bitsparse.arrays.npz import load_npz, save_npz
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR

__all__ = [
    "FRDC",
    "BitTensor",
    "TCTiledCSR",
    "block_diag",
    "eye",
    "hstack",
    "issparse",
    "kron",
    "load_npz",
    "random",
    "save_npz",
    "tril",
    "triu",
    "vstack",
]
