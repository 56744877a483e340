"""Training in integers of a few bits (TANGO, Chen et al., SC 2023) as a transformation of functions that call layers."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from bitsparse import _check
from bitsparse.jax import coded
from bitsparse.jax.attention_kinds import drawn_seed
from bitsparse.jax.coded import Codes, Coding
from bitsparse.jax.edges import once_each
from bitsparse.jax.graphs import Graph, factors_of
from bitsparse.jax.quantizer import Floats, Norm, Reduce, using

#: Bits of products with weights, and their granularity: one scale per array.
_PRODUCTS = 8, "tensor"
_LAST = ("float32", "sums", "quantized")


class _Settings(NamedTuple):
    bits: int
    rounding: str
    seed: int
    last: str

    @property
    def sums(self) -> tuple[int, str]:
        """Bits and granularity of the features and gradients that sums gather."""
        return self.bits, "tensor" if self.bits == 8 else "node"


def tango(
    function: Callable[..., Any],
    bits: Literal[8, 4, 2] = 8,
    *,
    rounding: Literal["stochastic", "nearest"] = "stochastic",
    seed: int = 0,
    last: Literal["float32", "sums", "quantized"] = "float32",
    argnums: int | tuple[int, ...] = 0,
) -> Callable[..., Any]:
    """Make the layers of a function multiply and sum in integers of a few bits (TANGO, Chen et al., SC 2023, section 3).

    This covers the forward and backward pass of the functions of :mod:`bitsparse.jax.layers`, which the modules of
    :mod:`bitsparse.jax.flax` and :mod:`bitsparse.jax.equinox` call. All else that the function computes, including :func:`spmm` and
    ``@``, stays as it is.

    Parameters
    ----------
    function : callable
        A function of arrays and pytrees, such as a loss of parameters and features.
    bits : {8, 4, 2}
        Bits of the features and gradients that sums over neighbours gather; products with weights always use 8 bits. With 8 bits an
        array has one scale; with fewer bits each node has one, a multiple of a common step.
    rounding : {"stochastic", "nearest"}
        Stochastic rounding makes gradients unbiased. Arrays that do not depend on the trained arguments are rounded to nearest.
    seed : int
    last : {"float32", "sums", "quantized"}
        How the layer that is called last computes: in float32 (the paper's third rule), with quantised sums but float products, or
        quantised altogether.
    argnums : int or tuple of int
        The arguments that are trained, as for :func:`jax.grad`.

    Returns
    -------
    callable
        A function with the arguments of `function` and ``step=``, the number of the training step, which may be traced: every step draws
        anew. The draws and their order are those of :class:`bitsparse.torch.Tango`: the same seed and step give the same codes on every
        device.

    Raises
    ------
    ValueError
        A setting is unknown. Raised by calls: the function has no layers, or a layer normalises a graph without self loops.

    Notes
    -----
    Every call, or tracing, first calls the function with abstract values to count layers and draws. Then all functions within it are
    inlined, and loops of ``scan`` are unrolled, so that each call of a layer has its own draws. JAX refuses loops whose number of steps is
    traced. Within ``jax.checkpoint``, features are rounded to nearest. To evaluate, call `function` itself. Weights of edges are rounded
    to 8-bit integers. Only first gradients exist.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> from bitsparse.jax import layers
    >>> g = bsj.graph(jnp.array([[0, 1, 2], [1, 2, 0]]), self_loops=True)
    >>> def loss(p, x):
    ...     h = jax.nn.relu(layers.gcn(g, x, p["first"], None))
    ...     return (layers.gcn(g, h, p["second"], None) ** 2).mean()
    >>> p = {"first": jnp.ones((3, 4)), "second": jnp.ones((4, 2))}
    >>> step = jax.jit(jax.value_and_grad(bsj.tango(loss, bits=8)))
    >>> value, gradients = step(p, jnp.eye(3), step=0)
    >>> gradients["first"].shape
    (3, 4)
    """
    name = "tango"
    if bits not in (8, 4, 2):
        raise ValueError(f"{name}: bits must be 8, 4 or 2, got {_check.shown(bits)}")
    _check.choice(name, "rounding", rounding, ("stochastic", "nearest"))
    _check.choice(name, "last", last, _LAST)
    settings = _Settings(bits, rounding, _check.integer(name, "seed", seed, 0, (1 << 63) - 1), last)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(function)
    def quantised(*args: Any, step: Any = 0, **given: Any) -> Any:
        total, draws, found = _rehearsed(function, settings, numbers, args, given)
        before = jnp.asarray(step).astype(jnp.uint32) * jnp.uint32(draws)
        with jax.disable_jit(), using(_Quantised(settings, total, found, before)):
            return function(*args, **given)

    del quantised.__wrapped__  # its signature lacks `step`
    return quantised


def _rehearsed(
    function: Callable[..., Any], settings: _Settings, numbers: tuple[int, ...], args: Any, given: Any
) -> tuple[int, int, dict[Hashable, int | None]]:
    """Rehearse a call: return the number of layers, the number of draws in a step, and the number of each draw."""
    outside = [number for number in numbers if not -len(args) <= number < len(args)]
    if outside:
        raise ValueError(f"tango: argnums has {outside[0]}, but the function was called with {len(args)} arguments")
    places = [number % len(args) for number in numbers]
    leaves, tree = jax.tree.flatten([args[place] for place in places])
    trained = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)]

    def of(parts: list[Any]) -> list[Any]:
        every = list(leaves)
        for i, part in zip(trained, parts, strict=True):
            every[i] = part
        changed = list(args)
        for place, part in zip(places, jax.tree.unflatten(tree, every), strict=True):
            changed[place] = part
        made = jax.tree.leaves(function(*changed, **given))
        return [part for part in made if hasattr(part, "dtype") and jnp.issubdtype(part.dtype, jnp.inexact)]

    def there_and_back(parts: list[Any]) -> Any:
        made, back = jax.vjp(of, parts)
        return back([jnp.ones_like(part) for part in made])

    kinds = [jax.ShapeDtypeStruct(leaves[i].shape, leaves[i].dtype) for i in trained]
    counting = _Layers()
    with jax.disable_jit(), using(counting):
        jax.eval_shape(of, kinds)
    if not counting.count:
        raise ValueError(
            "tango: the function calls none of bitsparse.jax.layers, of which the layers of bitsparse.jax.flax and bitsparse.jax.equinox "
            "are made; there is nothing to quantise"
        )
    rehearsal = _Rehearsal(settings, counting.count)
    with jax.disable_jit(), using(rehearsal):
        jax.eval_shape(there_and_back, kinds)
    return counting.count, rehearsal.draws, rehearsal.numbers


class _Layers(Floats):
    """Layers that compute in floats and are counted."""

    def __init__(self) -> None:
        self.count = self._depth = 0

    @contextmanager
    def layer(self) -> Iterator[None]:
        """Count one more layer, unless it is part of another."""
        self.count += not self._depth
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1


class _Steps(_Layers, ABC):
    """Numbers the quantised products and sums of layers, the last layer excepted, in the order of the layers for PyTorch."""

    def __init__(self, settings: _Settings, total: int) -> None:
        super().__init__()
        self._settings, self._total, self._calls = settings, total, 0

    def _next(self) -> int:
        self._calls += 1
        return self._calls

    @property
    def _is_last(self) -> bool:
        return self.count == self._total and self._settings.last != "quantized"

    @property
    def _sums_floats(self) -> bool:
        return self._is_last and self._settings.last != "sums"

    def linear(self, x: Any, kernel: Any) -> Any:
        """``x @ kernel``."""
        if self._is_last:
            return super().linear(x, kernel)
        made = self._linear(self._next(), x.reshape(-1, x.shape[-1]) if x.ndim != 2 else x, kernel)
        return made.astype(x.dtype).reshape(*x.shape[:-1], -1)

    def spmm(self, graph: Graph, x: Any, reduce: Reduce, norm: Norm) -> Any:
        """Sums, means or extrema over neighbours."""
        if self._sums_floats or reduce in ("max", "min"):
            return super().spmm(graph, x, reduce, norm)
        if norm == "gcn" and graph.alone is not None:
            raise ValueError(
                "tango: norm='gcn' is for graphs with an edge from every node to itself; make the graph with self_loops=True"
            )
        return self._spmm(self._next(), graph, x, *factors_of(norm, reduce == "mean")).astype(x.dtype)

    def attention(self, graph: Graph, x: Any, vectors: tuple[Any, Any], slope: float, dropout: float, key: Any) -> Any:
        """Attention by scores of both ends."""
        if self._sums_floats:
            return super().attention(graph, x, vectors, slope, dropout, key)
        once_each("attention", graph)
        seed = drawn_seed(key) if dropout else None
        return self._attention(self._next(), graph, x, vectors, (slope, dropout, seed)).astype(x.dtype)

    @abstractmethod
    def _linear(self, number: int, x: Any, kernel: Any) -> Any: ...

    @abstractmethod
    def _spmm(self, number: int, graph: Graph, x: Any, rows: str, columns: str) -> Any: ...

    @abstractmethod
    def _attention(self, number: int, graph: Graph, x: Any, vectors: tuple[Any, Any], how: tuple[Any, ...]) -> Any: ...


class _Rehearsal(_Steps):
    """Records the order of draws: one per array, shared by all layers that read it; those of gradients in the backward pass."""

    def __init__(self, settings: _Settings, total: int) -> None:
        super().__init__(settings, total)
        self.draws = 0
        self.numbers: dict[Hashable, int | None] = {}
        self._known: dict[Hashable, tuple[int, Any]] = {}

    def _ask(self, place: Hashable, array: Any, how: tuple[int, str], drawn: bool = True) -> None:
        if not drawn or self._settings.rounding == "nearest":
            self.numbers[place] = None
            return
        key = id(array), how
        if key not in self._known:
            self._known[key] = self.draws, array  # kept alive, so that no other array gets its id
            self.draws += 1
        self.numbers[place] = self._known[key][0]

    def _result(self, number: int, shape: tuple[int, ...], how: tuple[int, str], own: bool, *operands: Any) -> Any:
        """Zeros of a shape whose gradient asks for a draw; with `own`, the gradient is scaled first and never shares a draw."""

        @jax.custom_vjp
        def noted(*operands: Any) -> Any:
            return jnp.zeros(shape, jnp.float32)

        def backward(kinds: Any, gradient: Any) -> Any:
            self._ask((number, "gradient"), object() if own else gradient, how)
            return tuple(map(jnp.zeros_like, kinds))

        noted.defvjp(lambda *operands: (noted(*operands), operands), backward)
        return noted(*operands)

    def _linear(self, number: int, x: Any, kernel: Any) -> Any:
        self._ask((number, "weight"), kernel, _PRODUCTS)
        self._ask((number, "x"), x, _PRODUCTS, _depends(x))
        return self._result(number, (x.shape[0], kernel.shape[1]), _PRODUCTS, False, x, kernel)

    def _spmm(self, number: int, graph: Graph, x: Any, rows: str, columns: str) -> Any:
        self._ask((number, "x"), object() if columns else x, self._settings.sums, _depends(x))
        shape = graph.num_targets, *x.shape[1:]
        return self._result(number, shape, self._settings.sums, bool(rows), x)

    def _attention(self, number: int, graph: Graph, x: Any, vectors: tuple[Any, Any], how: tuple[Any, ...]) -> Any:
        sums, drawn = self._settings.sums, _depends(x)
        for place in ("scores", "x"):
            self._ask((number, place), x if sums[1] == "tensor" else object(), sums, drawn)
        return self._result(number, (graph.num_targets, *x.shape[1:]), sums, sums[1] != "tensor", x, *vectors)


def _depends(x: Any) -> bool:
    """Whether an array depends on the arguments of the differentiation."""
    found = []

    @jax.custom_vjp
    def looked_at(x: Any) -> Any:
        return x

    def forward(x: Any) -> Any:
        found.append(x.perturbed)
        return x.value, None

    looked_at.defvjp(forward, lambda _, gradient: (gradient,), symbolic_zeros=True)
    looked_at(x)
    return any(found)


class _Quantised(_Steps):
    """The real call: products and sums of codes, with the draws that the rehearsal has numbered."""

    def __init__(self, settings: _Settings, total: int, numbers: dict[Hashable, int | None], before: Any) -> None:
        super().__init__(settings, total)
        self._numbers, self._before = numbers, before

    def _coding(self, place: Hashable, how: tuple[int, str]) -> Coding:
        return Coding(*how, self._settings.seed, self._numbers.get(place))

    def _codes(self, place: Hashable, x: Any, how: tuple[int, str]) -> Codes:
        return coded.codes_of(x, self._coding(place, how), self._before)

    def _linear(self, number: int, x: Any, kernel: Any) -> Any:
        weight = kernel.T  # random numbers go by the layout of PyTorch's weights, (outputs, inputs)
        codes = self._codes((number, "x"), x, _PRODUCTS), self._codes((number, "weight"), weight, _PRODUCTS)
        return coded.linear(x, weight, codes, self._coding((number, "gradient"), _PRODUCTS), self._before)

    def _spmm(self, number: int, graph: Graph, x: Any, rows: str, columns: str) -> Any:
        how, weights = self._settings.sums, "counts" if graph.weight is None else "weight"
        ways = graph.ways((x, self._before), weights=weights, rows=rows, columns=columns)
        one, other = (getattr(graph, name) if name else None for name in (rows, columns))
        codes = self._codes((number, "x"), coded.scaled_rows(x, other), how)
        return coded.spmm(ways, one, x, codes, self._coding((number, "gradient"), how), self._before)

    def _attention(self, number: int, graph: Graph, x: Any, vectors: tuple[Any, Any], how: tuple[Any, ...]) -> Any:
        sums, (slope, dropout, seed) = self._settings.sums, how
        flat = x if sums[1] == "tensor" else x.reshape(x.shape[0], -1)
        codes = [self._codes((number, "scores"), flat, sums)]
        same = self._numbers[number, "scores"] == self._numbers[number, "x"]
        codes.append(codes[0] if same else self._codes((number, "x"), flat, sums))
        ends, gradient = coded.scores(x, *vectors, codes[0]), self._coding((number, "gradient"), sums)
        ways = graph.ways((x, *ends, seed))
        return coded.attention(ways, x, ends, seed, (slope, dropout), codes[1], gradient, self._before)
