"""A low-bit network prepared for one graph and one array of features, with all buffers it works in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse._records import replace
from bitsparse.arrays import BitTensor
from bitsparse.arrays.inside import assembled, family_of
from bitsparse.backends.params import GROUP_BITS, OperandParams, words_shape
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.nn.lowbit.host import row_operands, steps_in_bytes
from bitsparse.ops.operands.target import target_array

if TYPE_CHECKING:
    from bitsparse.nn.lowbit.network import LowBitNetwork
    from bitsparse.nn.lowbit.steps import Aggregate, Update

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
    nbytes : int
        Bytes of the buffers that it works in, beside features, weights, graph and logits.
    """

    def __init__(self, network: LowBitNetwork, operand: Any, x: BitTensor) -> None:
        function = "LowBitNetwork.plan"
        if not all(hasattr(operand, name) for name in ("nodes", "aggregate", "message_form")):
            raise DTypeError(
                f"{function}: the graph must be a Graph, got {type(operand).__name__}; make one with Graph.from_csr("
                f"indptr, indices, normalisation={network.normalisation!r}, self_loops={network.self_loops})"
            )
        _check.instance(function, "x", x, BitTensor, "a BitTensor", "pass network.quantize(x)")
        nodes, of_rows = int(operand.nodes), network.input_grid is None
        bits = min(x.bits, network.input_bits) if of_rows else network.input_bits
        wanted = ((nodes, network.features), bits, network.input_encoding, -1)
        if (x.shape, x.bits, x.encoding, x.axis) != wanted:
            raise ShapeError(
                f"{function}: x is (shape, bits, encoding, axis) {(x.shape, x.bits, x.encoding, x.axis)}, but graph and network take "
                f"{wanted}; pass network.quantize(x) of one row for each node"
            )
        if of_rows and x.scale is None:
            raise ValueError(
                f"{function}: the codes have no scale, but the network was calibrated on nn.Features, whose rows have scales of their "
                f"own; pass network.quantize(nn.Features(x))"
            )
        for name, affine in (("scale", None if of_rows else x.scale), ("offset", x.offset)):
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
        self.nbytes = 0
        in_bytes = steps_in_bytes(network, operand, x) if self.device == "cpu" else None
        if in_bytes is not None:
            self._calls, self._last, self.nbytes = in_bytes
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
                target = target_array(function, out, self.shape, np.dtype(np.float32), self.device, ())
            for call in self._calls:
                call()
            self._last(target)
            return interop.from_array(target, self._family, function) if out is None else out

    def _prepare(self, x: BitTensor) -> None:
        """One call for each step, with the buffers between them."""
        steps: tuple[Any, ...] = self._network.steps
        codes = x
        for i, step in enumerate(steps):
            following: Any = steps[i + 1] if i + 1 < len(steps) else None
            form = self._form_for(step, following)
            run: Callable[[Any], Any]
            if hasattr(step, "weights"):
                run = self._update(i, step, self._as(codes, _LEFT), form, x.scale if i == 0 else None)
            else:
                run = self._aggregate(i, step, codes, form)
            if following is None:
                self._last = run
                return
            room = self._room(step.chain.col_scale.size, step.chain.bits or 1, **form)
            gives = step.chain.epilogue(**form).wrap(room.words, room.shape, self._family, "LowBitPlan")
            self._calls.append(partial(run, gives))
            codes = self._beside(gives, codes) if getattr(step, "own", False) else gives

    def _form_for(self, step: Any, following: Any) -> dict[str, Any]:
        """How the codes of a step are packed: as what follows reads them."""
        if following is None or hasattr(following, "weights") or following.own:
            return _LEFT
        return dict(self._operand.message_form(step.chain.bits))

    def _room(self, columns: int, bits: int, axis: int = -1, layout: str = "planes", words: Any = None) -> BitTensor:
        """Unsigned codes of all nodes: in words that are there, or zeros to be written over."""
        shape = (self.shape[0], columns)
        packed = words_shape(shape, bits, axis, layout)
        if words is None:
            words = self._space.zeros(packed, np.uint32)
            self.nbytes += words.nbytes
        else:
            words = words.reshape(packed)
        return assembled(BitTensor, words, shape, bits, axis, layout, "unsigned", self._family)

    def _as(self, codes: BitTensor, form: dict[str, Any]) -> BitTensor:
        """Codes in another form, converted at every call where they are not in it."""
        axis, layout = form["axis"], form["layout"]
        if (codes.axis, codes.layout) == (axis, layout):
            return codes
        if codes.axis == axis and codes.bits == 1:  # the same bytes, in an array of another shape
            return self._room(codes.shape[1], 1, axis, layout, codes.words)
        if codes.axis != axis and (codes.layout, layout) != ("planes", "planes"):
            # Along the other axis only planes are turned, so that nothing has to be allocated on the way.
            for between in ({"axis": codes.axis, "layout": "planes"}, {"axis": axis, "layout": "planes"}, form):
                codes = self._as(codes, between)
            return codes
        shape, bits = codes.shape, codes.bits
        turned = self._room(shape[1], bits, axis, layout)
        backend = backends.family(self.device, "bits.pack")
        about = {"axis": codes.axis, "layout": codes.layout, "to_axis": axis, "to_layout": layout}

        def convert() -> None:
            if self.device == "cpu":
                turned.words[...] = backend.repack(codes.words, shape, bits, **about)
            else:
                backend.repack(codes.words, shape, bits, out=turned.words, **about)

        self._calls.append(convert)
        return turned

    def _beside(self, sums: BitTensor, own: BitTensor) -> BitTensor:
        """Sums and own codes side by side, each from a multiple of 128 columns on."""
        own = self._as(own, _LEFT)
        width = sums.words.shape[-1]
        both = self._room(GROUP_BITS * (width // 4) + own.shape[1], sums.bits)

        def copy() -> None:
            both.words[..., :width] = sums.words.reshape(both.words[..., :width].shape)
            both.words[..., width:] = own.words.reshape(both.words[..., width:].shape)

        self._calls.append(copy)
        return both

    def _aggregate(self, number: int, step: Aggregate, codes: BitTensor, form: dict[str, Any]) -> Callable[[Any], Any]:
        """Sums over neighbours, by the operand."""
        _, offset = self._network.placed(self.device, number)
        messages = self._as(codes, self._operand.message_form(step.bits)).with_affine(offset=offset)
        run = self._operand.aggregate(step.columns, step.bits, epilogue=step.chain.epilogue(**form))
        return lambda out: run(messages, out=out)

    def _update(
        self, number: int, step: Update, left: BitTensor, form: dict[str, Any], scale: Any
    ) -> Callable[[Any], Any]:
        """Product with the weights; nothing of the left operand is kept from one call to the next."""
        function = "LowBitNetwork"
        weights, constant = self._network.placed(self.device, number)
        rows = row_operands(self._operand.col_scale if step.scaled else None, constant, scale)
        k, n = weights.shape
        if left.shape[1] != k:
            raise ShapeError(f"{function}: step {number} has weights of {k} rows, but reads {left.shape[1]} columns")
        shape = (self.shape[0], n)
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
            params = replace(params, **rows)
            return lambda out: backend.matmul(
                left.words, weights.words, epilogue=params, out=_memory(out), kernel=kernel, **about
            )
        prepared = backend.prepare(left.words, n=n, b_batch=(), kernel=kernel, epilogue=params, fresh=True, **about)
        extra = OperandParams(**rows)
        return lambda out: prepared(weights.words, _memory(out), extra)


def _memory(out: Any) -> Any:
    """The array that a product writes."""
    return out.words if isinstance(out, BitTensor) else out
