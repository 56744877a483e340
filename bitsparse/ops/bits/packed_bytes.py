"""BitTensors made from the packed bytes of other libraries."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.packed import Encoding
from bitsparse.backends.params import Array
from bitsparse.errors import DTypeError, ShapeError


def words_of_bytes(x: Array) -> NDArray[np.uint32]:
    """Rows of bytes (N, B) as words (N, W), padded with zeros to a multiple of 16 bytes; a view if no padding is needed.

    Examples
    --------
    >>> words_of_bytes(np.array([[1, 2]], np.uint8))
    array([[513,   0,   0,   0]], dtype=uint32)
    """
    space, width = interop.namespace(x), -(-x.shape[1] // 16) * 16
    if x.shape[1] != width:
        padded = space.zeros((x.shape[0], width), np.uint8)
        padded[:, : x.shape[1]] = x
        x = padded
    return interop.aligned(x).view(np.uint32).reshape(x.shape[0], width // 4)


def with_bytes_reversed(words: Array) -> Array:
    """The words with the order of bits reversed in every byte.

    Examples
    --------
    >>> with_bytes_reversed(np.array([[0x80C00301]], np.uint32)).tolist() == [[0x0103C080]]
    True
    """
    for by, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F)):
        low = np.uint32(mask)
        words = ((words >> np.uint32(by)) & low) | ((words & low) << np.uint32(by))
    return words


def check_rows(function: str, name: str, x: Any) -> None:
    """Refuse codes that are not the rows of a matrix."""
    if x.ndim != 2:
        raise ShapeError(
            f"{function}: {name} has shape {tuple(x.shape)}, but codes are rows of a matrix; pass {name}[None]"
        )


def bytes_of(function: str, name: str, x: Any) -> tuple[Array, interop.Family]:
    """Packed rows as uint8, and their family; int8, as sentence-transformers stores packed bytes, is shifted up by 128."""
    array, family = interop.as_array(x, function, name)
    check_rows(function, name, array)
    if array.dtype == np.int8:
        return interop.contiguous(array).view(np.uint8) ^ np.uint8(128), family
    if array.dtype != np.uint8:
        raise DTypeError(
            f"{function}: {name} has dtype {array.dtype}, but packed bytes are uint8 or int8; pass pack_bits({name})"
        )
    return array, family


def from_packbits(
    x: Any, length: int | None = None, *, bitorder: str = "big", encoding: Encoding = "unsigned"
) -> BitTensor:
    """A BitTensor of one bit from packed bytes, eight bits in each.

    Parameters
    ----------
    x : array (N, B) of uint8 or int8
        Rows of bytes, as :func:`numpy.packbits` packs along the last axis, as FAISS stores binary vectors, or as sentence-transformers
        quantises embeddings: ``precision="ubinary"`` gives uint8, and ``"binary"`` gives int8, the same bytes less 128.
    length : int, optional
        Bits of a row, at most ``8 * B``, which is the default. Bits beyond it must be zero.
    bitorder : {"big", "little"}
        Which bit of a byte comes first, as in :func:`numpy.packbits`.
    encoding : {"unsigned", "bipolar"}
        Whether a bit stands for 0 or 1, or for -1 or +1.

    Returns
    -------
    BitTensor (N, length)
        It shares memory with `x` if `x` is uint8, ``bitorder="little"``, and each row is a multiple of 16 bytes.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        `x` does not hold rows of bytes, `length` does not fit them, or bits beyond `length` are set.

    Examples
    --------
    >>> bits = np.array([[1, 0, 0, 0, 0, 0, 0, 0, 1, 1]], bool)
    >>> bs.from_packbits(np.packbits(bits, axis=-1), 10).toarray().tolist()
    [[1, 0, 0, 0, 0, 0, 0, 0, 1, 1]]
    """
    function = "from_packbits"
    array, family = bytes_of(function, "x", x)
    most = 8 * array.shape[1]
    bits = most if length is None else _check.integer(function, "length", length, max(0, most - 7), most)
    order = _check.choice(function, "bitorder", bitorder, ("big", "little"))
    _check.encoding(function, encoding, 1)
    if encoding == "signed":
        raise ValueError(
            f"{function}: encoding must be 'unsigned' or 'bipolar', got 'signed'; a sign needs a second bit"
        )
    with interop.working_on(interop.device_of(array), family):
        words = words_of_bytes(array)
        words = words if order == "little" else with_bytes_reversed(words)
        made = BitTensor.from_words(words[:, None], (array.shape[0], bits), 1, encoding=encoding, check=bits < most)
    return made if family in (interop.NUMPY, interop.CUPY) else _in_family(made, family, encoding)


def _in_family(x: BitTensor, family: interop.Family, encoding: Encoding) -> BitTensor:
    words = interop.from_array(x.words.view(np.int32), family, "from_packbits")
    return BitTensor.from_words(words, x.shape, 1, encoding=encoding, check=False)


def from_rdkit(fingerprints: Sequence[Any]) -> BitTensor:
    """A BitTensor of one bit from RDKit fingerprints.

    Parameters
    ----------
    fingerprints : sequence of ExplicitBitVect
        All of one length, for example from ``rdFingerprintGenerator.GetMorganGenerator(fpSize=2048).GetFingerprint(molecule)``.

    Returns
    -------
    BitTensor (N, bits)

    Raises
    ------
    DTypeError, ShapeError
        One of them is no ExplicitBitVect, or they differ in length.

    Examples
    --------
    >>> from rdkit import DataStructs  # doctest: +SKIP
    >>> bs.from_rdkit([DataStructs.CreateFromBitString("1000000011")]).toarray().tolist()  # doctest: +SKIP
    [[1, 0, 0, 0, 0, 0, 0, 0, 1, 1]]
    """
    function, each = "from_rdkit", list(fingerprints)
    for one in each:
        if not hasattr(one, "GetNumBits") or not hasattr(one, "GetNumOnBits"):
            raise DTypeError(
                f"{function}: fingerprints must be RDKit's ExplicitBitVect, got {type(one).__name__}; from_packbits takes bytes"
            )
    lengths = {int(one.GetNumBits()) for one in each}
    if len(lengths) > 1:
        raise ShapeError(
            f"{function}: fingerprints have {min(lengths)} to {max(lengths)} bits; make all of them with one fpSize"
        )
    length = lengths.pop() if lengths else 0
    # The module is loaded: whoever has such an object has imported it.
    as_text = sys.modules["rdkit.DataStructs.cDataStructs"].BitVectToBinaryText if each else None
    text = b"".join(as_text(one) for one in each) if as_text is not None else b""
    rows = np.frombuffer(text, np.uint8).reshape(len(each), -(-length // 8))
    return BitTensor.from_words(words_of_bytes(rows)[:, None], (len(each), length), 1, check=True)
