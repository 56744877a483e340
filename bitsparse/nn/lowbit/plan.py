"""A low-bit network prepared for one graph and one array of features, with all buffers it works in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse._records import replace
from bitsparse.arrays import BitTensor
from bitsparse.arrays.construct import words_shape
from bitsparse.arrays.inside import assembled, family_of
from bitsparse.backends.params import GROUP_BITS, OperandParams
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.nn.lowbit.host import steps_in_bytes

if TYPE_CHECKING:
    from bitsparse.nn.lowbit.network import Aggregate, LowBitNetwork, Update

__all__ = ["LowBitPlan"]

_LEFT = {"axis": -1, "layout": "planes"}


class LowBitPlan:
    """``plan(out=None)``: logits of a :class:`LowBitNetwork`, made by its method `plan`.

    Every call reads the words of the features and the arrays of the operand as they are then. From the second call on, with `out`, a GPU's
    plan allocates and waits for nothing, as far as the operand's sums do not, so that it can be captured into a CUDA graph.

    Attributes
    ----------
    shape : tuple of int
        Of the logits.
    device : str
    launches : int
        Products and conversions of one call.
    """

    def __init__(self, network: LowBitNetwork, operand: Any, x: BitTensor) -> None:
        function = "LowBitNetwork.plan"
        if not all(hasattr(operand, name) for name in ("nodes", "aggregate", "message_form")):
            raise DTypeError(
                f"{function}: the graph must be a Graph, got {type(operand).__name__}; make one with Graph.from_csr("
                f"indptr, indices, normalisation={network.normalisation!r}, self_loops={network.self_loops})"
            )
        if not isinstance(x, BitTensor):
            raise DTypeError(f"{function}: x must be a BitTensor, got {type(x).__name__}; pass network.quantize(x)")
        nodes = int(operand.nodes)
        wanted = ((nodes, network.features), network.input_bits, network.input_encoding, -1)
        if (x.shape, x.bits, x.encoding, x.axis) != wanted:
            raise ShapeError(
                f"{function}: x is (shape, bits, encoding, axis) {(x.shape, x.bits, x.encoding, x.axis)}, but graph and network take "
                f"{wanted}; pass network.quantize(x) of one row for each node"
            )
        for name, affine in (("scale", x.scale), ("offset", x.offset)):
            if affine is not None:  # the network's own grid is part of its first product
                raise ValueError(
                    f"{function}: the codes have a {name}, which is not the grid that the network was calibrated for; pass "
                    f"network.quantize(x.dequantize()), or x.with_affine() if the codes are on the network's grid"
                )
        if (operand.normalisation, bool(operand.self_loops)) != (network.normalisation, network.self_loops):
            raise ValueError(
                f"{function}: the operand has normalisation={operand.normalisation!r} and self_loops={operand.self_loops}, but a "
                f"{network.kind} takes {network.normalisation!r} and {network.self_loops}; make it with these"
            )
        self.device = _check.same_device(function, (operand.device, x.device))
        self.shape = (nodes, network.classes)
        self._network, self._operand, self._family = network, operand, family_of(x)
        self._space = interop.namespace(x.words)
        self._calls: list[Callable[[], Any]] = []
        self._last: Callable[[Any], Any]
        in_bytes = steps_in_bytes(network, operand, x) if self.device == "cpu" else None
        if in_bytes is not None:
            self._calls, self._last = in_bytes
        else:
            with interop.working_on(self.device, self._family):
                self._prepare(x)
        self.launches = len(self._calls) + 1

    def __repr__(self) -> str:
        return f"<LowBitPlan {self._network.name} of {self.shape[0]} nodes on {self.device}, {self.launches} launches>"

    def __call__(self, out: Any = None) -> Any:
        """The logits, ``(nodes, classes)`` float32, into ``out`` if given (C-contiguous, on the plan's device)."""
        function = "LowBitPlan"
        with interop.working_on(self.device, self._family):
            if out is None:
                target = self._space.empty(self.shape, np.float32)
            else:
                target = interop.writable_array(out, function)
                _check.out_array(function, target, self.shape, np.dtype(np.float32))
                _check.same_device(function, (self.device, interop.device_of(target)))
            for call in self._calls:
                call()
            self._last(target)
            return interop.from_array(target, self._family, function) if out is None else out

    def _prepare(self, x: BitTensor) -> None:
        """One call for each step, with the buffers between them."""
        steps = self._network.steps
        codes = x
        for i, step in enumerate(steps):
            following: Any = steps[i + 1] if i + 1 < len(steps) else None
            form = self._form_for(step, following)
            run = self._run_of(i, step, codes, form)
            if following is None:
                self._last = run
                return
            gives = step.chain.epilogue(**form).wrap(
                self._words((self.shape[0], step.chain.col_scale.size), step.chain.bits or 1, **form),
                (self.shape[0], step.chain.col_scale.size), self._family, "LowBitPlan",
            )  # fmt: skip
            self._calls.append(_bound(run, gives))
            codes = self._beside(gives, codes) if getattr(step, "own", False) else gives

    def _run_of(self, number: int, step: Any, codes: BitTensor, form: dict[str, Any]) -> Callable[[Any], Any]:
        if hasattr(step, "weights"):
            return self._update(number, step, self._as(codes, _LEFT), form)
        return self._aggregate(number, step, codes, form)

    def _form_for(self, step: Any, following: Any) -> dict[str, Any]:
        """How the codes of a step are packed: as what follows reads them."""
        if following is None or hasattr(following, "weights") or following.own:
            return _LEFT
        return dict(self._operand.message_form(step.chain.bits))

    def _words(self, shape: tuple[int, ...], bits: int, axis: int, layout: str) -> Any:
        return self._space.zeros(words_shape(shape, bits, axis, layout), np.uint32)

    def _as(self, codes: BitTensor, form: dict[str, Any]) -> BitTensor:
        """Codes in another form, converted at every call where they are not in it."""
        axis, layout = form["axis"], form["layout"]
        if (codes.axis, codes.layout) == (axis, layout):
            return codes
        if codes.axis == axis and codes.bits == 1:  # the same bytes, in an array of another shape
            words = codes.words.reshape(words_shape(codes.shape, 1, axis, layout))
            return assembled(BitTensor, words, codes.shape, 1, axis, layout, codes.encoding, self._family)
        if codes.axis != axis and (codes.layout, layout) != ("planes", "planes"):
            # Along the other axis only planes are turned, so that nothing has to be allocated on the way.
            return self._as(
                self._as(self._as(codes, {"axis": codes.axis, "layout": "planes"}), {"axis": axis, "layout": "planes"}),
                form,
            )
        shape, bits = codes.shape, codes.bits
        made = assembled(
            BitTensor, self._words(shape, bits, axis, layout), shape, bits, axis, layout, "unsigned", self._family
        )
        backend = backends.family(self.device, "bits.pack")
        about = {"axis": codes.axis, "layout": codes.layout, "to_axis": axis, "to_layout": layout}

        def convert() -> None:
            if self.device == "cpu":
                made.words[...] = backend.repack(codes.words, shape, bits, **about)
            else:
                backend.repack(codes.words, shape, bits, out=made.words, **about)

        self._calls.append(convert)
        return made

    def _beside(self, sums: BitTensor, own: BitTensor) -> BitTensor:
        """Sums and own codes side by side, each from a multiple of 128 columns on."""
        own = self._as(own, _LEFT)
        width = sums.words.shape[-1]
        columns = GROUP_BITS * (width // 4) + own.shape[1]
        shape = (self.shape[0], columns)
        both = assembled(
            BitTensor,
            self._words(shape, sums.bits, -1, "planes"),
            shape,
            sums.bits,
            -1,
            "planes",
            "unsigned",
            self._family,
        )

        def copy() -> None:
            both.words[..., :width] = sums.words.reshape(both.words[..., :width].shape)
            both.words[..., width:] = own.words.reshape(both.words[..., width:].shape)

        self._calls.append(copy)
        return both

    def _aggregate(self, number: int, step: Aggregate, codes: BitTensor, form: dict[str, Any]) -> Callable[[Any], Any]:
        """Sums over neighbours, by the operand."""
        _, offset = self._network.placed(self.device, number)
        read = self._as(codes, dict(self._operand.message_form(step.bits)))
        messages = assembled(
            BitTensor, read.words, read.shape, read.bits, read.axis, read.layout, "unsigned", self._family, None, offset
        )
        run = self._operand.aggregate(
            step.columns, step.bits, encoding="unsigned", epilogue=step.chain.epilogue(**form)
        )
        return lambda out: run(messages, out=out)

    def _update(self, number: int, step: Update, left: BitTensor, form: dict[str, Any]) -> Callable[[Any], Any]:
        """Product with the weights; nothing of the left operand is kept from one call to the next."""
        function = "LowBitNetwork"
        weights, constant = self._network.placed(self.device, number)
        k, n = weights.shape
        if left.shape[1] != k:
            raise ShapeError(f"{function}: step {number} has weights of {k} rows, but reads {left.shape[1]} columns")
        shape = (self.shape[0], n)
        rows = self._operand.col_scale if step.scaled else None
        term = None if constant is None else (rows, constant)
        params = step.chain.epilogue(**form).params(function, shape)
        sizes = 2**left.bits - 1, 2 ** (weights.bits - 1)
        about = {
            "k": k,
            "a_bits": left.bits,
            "b_bits": weights.bits,
            "a_encoding": "unsigned",
            "b_encoding": "signed",
            "acc_dtype": _check.accumulator(function, k, *sizes),
            "bitmap": None,
        }
        backend: Any = backends.family(self.device, "matmul.matmul")
        more = {} if self.device == "cpu" else {"fresh": True}
        costs = {name: backend.cost(name, *shape, k, left.bits, weights.bits, 1.0, **more) for name in backend.CHOICES}
        kernel = min(costs, key=costs.__getitem__)
        if self.device == "cpu":
            params = replace(params, row_scale=rows, col_term=term)
            return lambda out: backend.matmul(
                left.words, weights.words, epilogue=params, out=_memory(out), kernel=kernel, **about
            )
        prepared = backend.prepare(left.words, n=n, b_batch=(), kernel=kernel, epilogue=params, fresh=True, **about)
        extra = OperandParams(row_scale=rows, col_term=term)
        return lambda out: prepared(weights.words, _memory(out), extra)


def _bound(run: Callable[[Any], Any], out: Any) -> Callable[[], Any]:
    return lambda: run(out)


def _memory(out: Any) -> Any:
    """The array that a product writes."""
    return out.words if isinstance(out, BitTensor) else out
