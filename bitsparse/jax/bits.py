"""Packed integers in JAX: a pytree of words, and functions that pack and multiply them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bitsparse import _check, _records, arrays, interop
from bitsparse._records import as_dict
from bitsparse.arrays import construct
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.jax import batches
from bitsparse.jax.calls import Kind, call
from bitsparse.jax.edges import once_each
from bitsparse.jax.graphs import Graph
from bitsparse.jax.sums import features
from bitsparse.jax.ways import Ways
from bitsparse.ops.finish import schemes


class Settings(NamedTuple):
    """Shape and format of the words of a :class:`BitTensor`."""

    shape: tuple[int, ...]
    bits: int
    axis: int
    layout: str
    encoding: str


@jax.tree_util.register_pytree_node_class
class BitTensor:
    """Integers of a few bits in packed words: a pytree of JAX arrays, whose settings are not traced.

    :func:`quantize` and :func:`pack_bits` make one, and :meth:`of` converts a :class:`bitsparse.BitTensor`.

    Parameters
    ----------
    words : array of uint32
    scale, offset : array of float32, or None
    settings : Settings
        The settings of a :class:`bitsparse.BitTensor`; axes of the shape before the last two follow from the words.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> q = bsj.pack_bits(jnp.array([[1, 2], [3, 0]]), 2)
    >>> q, q.array.toarray().tolist()
    (BitTensor((2, 2), 2 bits, unsigned), [[1, 2], [3, 0]])
    """

    def __init__(self, words: Any, scale: Any, offset: Any, settings: Settings) -> None:
        self.words, self.scale, self.offset, self.settings = words, scale, offset, settings

    def tree_flatten(self) -> tuple[Any, Any]:
        """Split into arrays and settings; of the shape only the last two sizes, as transforms add and remove axes in front of them."""
        settings = _records.replace(self.settings, shape=self.settings.shape[-2:])
        return (self.words, self.scale, self.offset), settings

    @classmethod
    def tree_unflatten(cls, settings: Any, children: Any) -> BitTensor:
        """Put the same settings over other arrays."""
        words, scale, offset = children
        inner = 3 if settings.layout == "planes" else 2
        batch = getattr(words, "shape", ())[:-inner]  # JAX also builds trees of objects that are no arrays
        return cls(words, scale, offset, _records.replace(settings, shape=(*batch, *settings.shape)))

    @classmethod
    def of(cls, array: arrays.BitTensor) -> BitTensor:
        """Convert a :class:`bitsparse.BitTensor`: copied from the host, or sharing its memory on a GPU."""
        remedy = "take one of bitsparse, or make one here with quantize(...) or pack_bits(...)"
        parts = _check.instance("BitTensor.of", "array", array, arrays.BitTensor, "a BitTensor", remedy).components()
        words, scale, offset = (_of_jax(parts[name]) for name in ("words", "scale", "offset"))
        return cls(words, scale, offset, Settings(**array.settings()))

    @property
    def array(self) -> arrays.BitTensor:
        """A :class:`bitsparse.BitTensor` over the same memory; not available while tracing."""
        return arrays.BitTensor.from_words(self.words, scale=self.scale, offset=self.offset, **as_dict(self.settings))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of integers."""
        return self.settings.shape

    @property
    def bits(self) -> int:
        """The number of bits of an integer."""
        return self.settings.bits

    def __repr__(self) -> str:
        return f"BitTensor({self.shape}, {self.bits} bits, {self.settings.encoding})"


def _of_jax(part: Any) -> Any:
    if part is None:
        return None
    return jnp.array(part) if isinstance(part, np.ndarray) else interop.from_array(part, interop.JAX, "BitTensor")


def words_of(settings: Settings) -> Any:
    """The shape and dtype of the words."""
    shape, axis = settings.shape, settings.axis
    length, outer = shape[axis], shape[-2 if axis == -1 else -1]
    if settings.layout == "planes":
        return Kind((*shape[:-2], outer, settings.bits, -(-length // 128) * 4), jnp.uint32)
    return Kind((*shape[:-2], outer, -(-length * settings.bits // 128) * 4), jnp.uint32)


def quantize(
    x: Any,
    bits: int,
    *,
    scheme: Literal["affine", "affine-pow2", "symmetric"] = "affine",
    rounding: Literal["floor", "nearest", "stochastic"] | None = None,
    granularity: Literal["tensor", "row", "col"] = "tensor",
    axis: int = -1,
    layout: Literal["planes", "rows"] = "planes",
    seed: int | None = None,
    stream: int = 0,
) -> BitTensor:
    """Quantise real numbers to integers of a few bits with an affine scale.

    Parameters
    ----------
    x : array of float16, bfloat16, float32 or float64
        Real numbers; no gradient passes through them.
    bits, scheme, rounding, granularity, axis, layout, seed, stream
        As in :func:`bitsparse.quantize`, not traced. Stochastic rounding needs a seed.

    Returns
    -------
    BitTensor
        The same bits as :func:`bitsparse.quantize` returns.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Raised while tracing, for options and shapes that do not fit. For NaN and infinity, JAX raises an error when it computes the result.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> q = jax.jit(lambda x: bsj.quantize(x, 2))(jnp.array([[0.0, 0.3, 1.0]]))
    >>> q.array.toarray().tolist()
    [[0, 1, 3]]
    """
    function = "quantize"
    x = jnp.asarray(x)
    if x.dtype.kind != "f" and x.dtype.name != "bfloat16":
        raise DTypeError(f"{function}: x is {x.dtype}; pass floats, or pack integers, pack_bits(x, bits)")
    _check.at_least_2d(function, "x", x.shape)
    name, bits = schemes.scheme_bits(function, scheme, bits)
    rounded = _check.rounding_of(function, name, rounding)
    _check.choice(function, "granularity", granularity, _check.GRANULARITIES)
    packed, placed = _check.axis(function, axis, x.ndim), _check.layout(function, layout, bits)
    if rounded == "stochastic" and seed is None:
        raise ValueError(f"{function}: rounding='stochastic' draws by a seed, which is not traced; pass seed=")
    schemes.checked_seed(function, rounded, seed, stream)
    signed = "signed" if name == "symmetric" else "unsigned"
    settings = Settings(x.shape, bits, packed, placed, signed)
    factor = {"tensor": (), "row": (*x.shape[:-1], 1), "col": (*x.shape[:-2], 1, x.shape[-1])}[granularity]
    kinds = [words_of(settings), *[Kind(factor, jnp.float32)] * (1 if signed == "signed" else 2)]
    how: dict[str, Any] = {"bits": bits, "scheme": scheme, "rounding": rounding, "granularity": granularity}
    how |= {"axis": axis, "layout": layout, "seed": seed, "stream": stream}

    words, scale, *offset = _called("quantize", None, (x,), kinds, **how)
    return BitTensor(words, scale, offset[0] if offset else None, settings)


def pack_bits(
    x: Any,
    bits: int = 1,
    *,
    encoding: Literal["unsigned", "signed", "bipolar"] = "unsigned",
    axis: int = -1,
    layout: Literal["planes", "rows"] = "planes",
) -> BitTensor:
    """Pack integers, or with ``encoding="bipolar"`` the signs of numbers, as :func:`bitsparse.pack_bits` does.

    Parameters
    ----------
    x : array of at least two dimensions
    bits, encoding, axis, layout
        As in :func:`bitsparse.pack_bits`, not traced.

    Returns
    -------
    BitTensor

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Raised while tracing, for options that do not fit. For values beyond `bits`, JAX raises an error when it computes the result.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> bsj.pack_bits(jnp.array([[0.5, -1.0]]), encoding="bipolar").array.toarray().tolist()
    [[1, -1]]
    """
    function = "pack_bits"
    x = jnp.asarray(x)
    _check.at_least_2d(function, "x", x.shape)
    bits = _check.bit_count(function, bits)
    construct.check_dtype(function, x.dtype, bits)
    kind = _check.encoding(function, encoding, bits)
    settings = Settings(x.shape, bits, _check.axis(function, axis, x.ndim), _check.layout(function, layout, bits), kind)
    how = {"bits": bits, "encoding": encoding, "axis": axis, "layout": layout}
    (words,) = _called("pack_bits", None, (x,), [words_of(settings)], **how)
    return BitTensor(words, None, None, settings)


def dequantize(q: BitTensor) -> Any:
    """The real numbers (float32) that the integers of a BitTensor stand for, as from :func:`bitsparse.dequantize`; without a gradient.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> bsj.dequantize(bsj.quantize(jnp.array([[0.0, 0.5, 1.0]]), 1)).tolist()
    [[0.0, 0.0, 1.0]]
    """
    q = _bits("dequantize", "q", q)
    parts, kinds = (q.words, q.scale, q.offset), [Kind(q.shape, jnp.float32)]
    return _called("dequantize", None, parts, kinds, settings=as_dict(q.settings))[0]


def matmul(a: BitTensor, b: BitTensor) -> Any:
    """Product of two BitTensors, exact in integers; scales and offsets are not applied.

    Parameters
    ----------
    a, b : BitTensor (..., m, k) and (..., k, n)
        Fastest with the contraction axis packed, `axis` -1 in `a` and -2 in `b`.

    Returns
    -------
    array (..., m, n)
        int32 if bits and encoding show that no sum can exceed it, else int64, for which JAX must be set to 64 bits.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Raised while tracing, for operands that do not fit.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> a, b = bsj.pack_bits(jnp.array([[1, 0, 1]])), bsj.pack_bits(jnp.array([[5], [2], [1]]), 3, axis=-2)
    >>> bsj.matmul(a, b).tolist()
    [[6]]
    """
    function = "matmul"
    one, other = _bits(function, "a", a), _bits(function, "b", b)
    _check.matmul_shapes(function, one.shape, other.shape)
    largest = (max(map(abs, _check.limits_of(q.bits, q.settings.encoding))) for q in (one, other))
    dtype = _check.accumulator(function, one.shape[-1], *largest)
    if dtype == np.int64 and not jax.config.jax_enable_x64:
        raise DTypeError(
            f"{function}: sums of {one.shape[-1]} products of {one.bits} and {other.bits} bits need int64, which JAX would cut to 32 bits; "
            f"call jax.config.update('jax_enable_x64', True) first"
        )
    batch = _check.batches(function, one.shape[:-2], other.shape[:-2])
    shape = (*batch, one.shape[-2], other.shape[-1])
    how = {"left": as_dict(one.settings), "right": as_dict(other.settings)}
    return _called("matmul", None, (one.words, other.words), [Kind(shape, dtype)], **how)[0]


def bspmm(graph: Graph, x: Any, *, binarise: bool = False) -> Any:
    """Sums over neighbours with one bit per feature (BitGNN sections 3.2.2 and 3.3), or the signs of such sums.

    Parameters
    ----------
    graph : Graph
        A graph without repeated edges; its weights are ignored.
    x : BitTensor (sources, D) of one bit, or array (sources, D) of float16, bfloat16 or float32
        Features; bipolar bits stand for -1 and +1. No gradient passes through them.
    binarise : bool
        Return the signs of the sums as bits, with +1 for 0.

    Returns
    -------
    array (targets, D) or BitTensor
        int32 for bits, float32 for floats, bipolar bits if `binarise`: the variants BBF, FBF, BBB and FBB of :func:`bitsparse.bspmm`.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Raised while tracing, for operands that do not fit.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> g = bsj.graph(jnp.array([[0, 1, 2], [1, 0, 0]]))
    >>> x = bsj.pack_bits(jnp.array([[0.5, -1.0], [2.0, -3.0], [-1.0, -1.0]]), encoding="bipolar")
    >>> bsj.bspmm(g, x).tolist()
    [[0, -2], [1, -1], [0, 0]]
    """
    function = "bspmm"
    once_each(function, graph)
    _check.flag(function, "binarise", binarise)
    if isinstance(x, BitTensor):
        if x.bits != 1 or len(x.shape) != 2 or x.shape[0] != graph.num_sources:
            raise ShapeError(
                f"{function}: the graph has {graph.num_sources} sources but x is {x}; pass one bit for each of (sources, D)"
            )
        parts, told, letter, dtype = (x.words, x.scale, x.offset), as_dict(x.settings), "B", jnp.int32
    else:
        x = features(function, graph, x)
        if x.ndim != 2 or x.dtype == jnp.float64:
            raise DTypeError(
                f"{function}: x is {x.dtype} of shape {x.shape}; pass float32 of (sources, D), or pack_bits(x)"
            )
        parts, told, letter, dtype = (x, None, None), None, "F", jnp.float32
    shape = (graph.num_targets, x.shape[1])
    settings = Settings(shape, 1, -1, "planes", "bipolar")
    if parts[1] is not None or parts[2] is not None:
        raise DTypeError(f"{function}: x has a scale or an offset; pass the bits alone, pack_bits(...)")
    kind, variant = words_of(settings) if binarise else Kind(shape, dtype), f"{letter}B{'FB'[binarise]}"
    ways = graph.ways(parts).only("forward")
    (made,) = _called("bspmm", ways, parts[:1], [kind], variant=variant, told=told)
    return BitTensor(made, None, None, settings) if binarise else made


def _bits(function: str, name: str, q: Any) -> BitTensor:
    if not isinstance(q, BitTensor):
        raise DTypeError(
            f"{function}: {name} is a {type(q).__name__}; pass a BitTensor of bitsparse.jax, quantize(...) or pack_bits(...)"
        )
    return q


def _called(function: str, ways: Ways | None, arrays: tuple[Any, ...], kinds: list[Any], **options: Any) -> Any:
    """Call a function without a gradient; for a batch, once per element."""
    run = batches.batched(lambda ways, *parts: tuple(call(function, ways, parts, kinds, **options)))
    return run(ways, *jax.lax.stop_gradient(arrays))
