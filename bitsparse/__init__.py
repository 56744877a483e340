"""bitsparse: low-bit and sparse graph arrays, the same answers on CPU and GPU.

>>> import bitsparse as bs
>>> import numpy as np
>>> a = bs.pack_bits(np.array([[1, 0, 1], [0, 1, 1]]))
>>> a @ bs.pack_bits(np.array([[5], [2], [1]]), axis=-2)
array([[6],
       [3]], dtype=int32)

Functions on the CPU release the GIL. Another thread may call them too; one that writes into an array while a function reads it makes the
function's result wrong, or raises a ValueError, and nothing worse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitsparse import _compiled as _compiled  # first: it explains a missing compiled part
from bitsparse.arrays import FRDC, BitTensor, TCTiledCSR, load_npz, save_npz
from bitsparse.backends.host import get_num_threads, set_num_threads
from bitsparse.errors import (
    BitsparseError,
    DeviceError,
    DTypeError,
    FileFormatError,
    KernelError,
    LockError,
    ShapeError,
)
from bitsparse.interop import use_stream
from bitsparse.ops import (
    BatchNorm,
    BmmPlan,
    BspmmPlan,
    EdgeSample,
    Epilogue,
    MatmulPlan,
    QuantCache,
    QuantizedMatmulPlan,
    QuantizedProduct,
    SampledPlan,
    SpmmPlan,
    add,
    aggregate_edges,
    attention,
    bmm,
    bspmm,
    choose_bits,
    concat,
    cosine_attention,
    dequantize,
    edge_sample,
    edge_softmax,
    matmul,
    pack_bits,
    plan_bmm,
    plan_bspmm,
    plan_matmul,
    plan_quantized_matmul,
    plan_sampled_spmm,
    plan_spmm,
    quantization_error,
    quantize,
    quantized_matmul,
    sampled_spmm,
    sddmm,
    spmm,
    stochastic_round,
    unpack_bits,
)

__all__ = [
    "FRDC",
    "BatchNorm",
    "BitTensor",
    "BitsparseError",
    "BmmPlan",
    "BspmmPlan",
    "DTypeError",
    "DeviceError",
    "EdgeSample",
    "Epilogue",
    "FileFormatError",
    "KernelError",
    "LockError",
    "MatmulPlan",
    "QuantCache",
    "QuantizedMatmulPlan",
    "QuantizedProduct",
    "SampledPlan",
    "ShapeError",
    "SpmmPlan",
    "TCTiledCSR",
    "__version__",
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
    "get_num_threads",
    "load_npz",
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
    "save_npz",
    "sddmm",
    "set_num_threads",
    "spmm",
    "stochastic_round",
    "tune",
    "unpack_bits",
    "use_stream",
]

if TYPE_CHECKING:
    from bitsparse.nn import tune

    __version__: str


def __getattr__(name: str) -> Any:
    # Read from the installed metadata only when asked: importlib.metadata costs more than the rest of the import.
    if name == "__version__":
        from importlib.metadata import version

        return version("bitsparse")
    if name == "tune":  # the networks are a layer of their own, above the arrays
        from bitsparse.nn import tune

        globals()["tune"] = tune
        return tune
    raise AttributeError(f"module 'bitsparse' has no attribute {name!r}")
