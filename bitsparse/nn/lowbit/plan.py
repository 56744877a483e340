"""A low-bit network prepared for one graph and one array of features, with all buffers that it needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays import BitTensor, TCTiledCSR
from bitsparse.arrays.inside import assembled, family_of
from bitsparse.errors import DeviceError, DTypeError
from bitsparse.nn.checks import agree
from bitsparse.nn.lowbit.host import step_params, steps_in_bytes
from bitsparse.nn.lowbit.inputs import check_codes, scale_of
from bitsparse.ops import spmm
from bitsparse.ops import steps as on_codes
from bitsparse.ops.operands.target import target_array

if TYPE_CHECKING:
    from bitsparse.nn.lowbit.network import LowBitNetwork
    from bitsparse.nn.lowbit.steps import Aggregate, Update

#: The packing in which a product reads its left operand.
_LEFT = {"axis": -1, "layout": "planes"}


class LowBitPlan:
    """A prepared :class:`LowBitNetwork`, made by its method `plan`; ``plan(out=None)`` gives the logits.

    Every call reads the current words of the features and the current arrays of the operand. From the second call on, a call with `out` on
    a GPU allocates nothing and waits for nothing, unless the operand's sums do, so that it can be captured into a CUDA graph.

    Attributes
    ----------
    shape : tuple of int
        The shape of the logits.
    device : str
    launches : int
        Number of products and conversions in one call.
    nbytes : int
        Bytes of its buffers, without features, weights, graph and logits.
    """

    def __init__(self, network: LowBitNetwork, operand: Any, x: BitTensor | TCTiledCSR) -> None:
        function = "LowBitNetwork.plan"
        if not all(hasattr(operand, name) for name in ("nodes", "aggregate", "message_form")):
            raise DTypeError(
                f"{function}: the graph must be a Graph, got {type(operand).__name__}; make one with Graph.from_csr("
                f"indptr, indices, normalisation={network.normalisation!r}, self_loops={network.self_loops})"
            )
        nodes = int(operand.nodes)
        check_codes(function, network, nodes, x)
        if (operand.normalisation, bool(operand.self_loops)) != (network.normalisation, network.self_loops):
            raise ValueError(
                f"{function}: the operand has normalisation={operand.normalisation!r} and self_loops={operand.self_loops}, but a "
                f"{network.kind} takes {network.normalisation!r} and {network.self_loops}; make it with these"
            )
        self.device = _check.same_device(function, (operand.device, x.device))
        if isinstance(x, TCTiledCSR) and self.device != "cpu":
            raise DeviceError(
                f"{function}: x is sparse and on {self.device}, but sparse codes are multiplied on a CPU alone; pass "
                f"network.quantize(x) in another layout"
            )
        self.shape = (nodes, network.classes)
        self._network, self._operand, self._family = network, operand, family_of(x)
        self._space = interop.namespace(x.indptr if isinstance(x, TCTiledCSR) else x.words)
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
        """Compute the logits, ``(nodes, classes)`` float32, in ``out`` if given (C-contiguous, on the plan's device)."""
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

    def _prepare(self, x: BitTensor | TCTiledCSR) -> None:
        """Make a call for each step, and the buffers between them."""
        steps: tuple[Any, ...] = self._network.steps
        codes: Any = x
        for i, step in enumerate(steps):
            following: Any = steps[i + 1] if i + 1 < len(steps) else None
            form = self._form_for(step, following)
            run: Callable[[Any], Any]
            if isinstance(codes, TCTiledCSR):
                run = self._sparse_update(step, codes, form)
            elif hasattr(step, "weights"):
                run = self._update(i, step, self._in_form(codes, _LEFT), form, scale_of(x) if i == 0 else None)
            else:
                run = self._aggregate(i, step, codes, form)
            if following is None:
                self._last = run
                return
            buffer = self._buffer(step.chain.col_scale.size, step.chain.bits or 1, **form)
            output = step.chain.epilogue(**form).wrap(buffer.words, buffer.shape, self._family, "LowBitPlan")
            self._calls.append(partial(run, output))
            codes = self._beside(output, codes) if getattr(step, "own", False) else output

    def _form_for(self, step: Any, following: Any) -> dict[str, Any]:
        """The packing of a step's codes, in which the following step reads them."""
        if following is None or hasattr(following, "weights") or following.own:
            return _LEFT
        return dict(self._operand.message_form(step.chain.bits))

    def _buffer(self, columns: int, bits: int, axis: int = -1, layout: str = "planes") -> BitTensor:
        """Allocate a buffer for unsigned codes of all nodes, and count it in `nbytes`."""
        buffer = on_codes.blank(self._space, (self.shape[0], columns), bits, axis, layout, self._family)
        self.nbytes += buffer.words.nbytes
        return buffer

    def _in_form(self, codes: BitTensor, form: dict[str, Any]) -> BitTensor:
        """Codes in another form; unless they have it already, every call converts them."""
        axis, layout = form["axis"], form["layout"]
        if (codes.axis, codes.layout) == (axis, layout):
            return codes
        if codes.axis == axis and codes.bits == 1:  # the same bytes with another shape
            words = codes.words.reshape(on_codes.words_shape(codes.shape, 1, axis, layout))
            return assembled(BitTensor, words, codes.shape, 1, axis, layout, "unsigned", self._family)
        if codes.axis != axis and (codes.layout, layout) != ("planes", "planes"):
            # Only planes can be converted to the other axis without allocating memory.
            for between in ({"axis": codes.axis, "layout": "planes"}, {"axis": axis, "layout": "planes"}, form):
                codes = self._in_form(codes, between)
            return codes
        converted = self._buffer(codes.shape[1], codes.bits, axis, layout)
        self._calls.append(on_codes.repacking(codes, converted))
        return converted

    def _beside(self, sums: BitTensor, own: BitTensor) -> BitTensor:
        """Put sums and own codes side by side; the own codes begin at a multiple of 128 columns."""
        own = self._in_form(own, _LEFT)
        width = sums.words.shape[-1]
        both = self._buffer(on_codes.GROUP_BITS * (width // 4) + own.shape[1], sums.bits)

        def copy() -> None:
            both.words[..., :width] = sums.words.reshape(both.words[..., :width].shape)
            both.words[..., width:] = own.words.reshape(both.words[..., width:].shape)

        self._calls.append(copy)
        return both

    def _aggregate(self, number: int, step: Aggregate, codes: BitTensor, form: dict[str, Any]) -> Callable[[Any], Any]:
        """Prepare sums over neighbours, which the operand computes."""
        _, offset = self._network.placed(self.device, number)
        messages = self._in_form(codes, self._operand.message_form(step.bits)).with_affine(offset=offset)
        run = self._operand.aggregate(step.columns, step.bits, epilogue=step.chain.epilogue(**form))
        return lambda out: run(messages, out=out)

    def _update(
        self, number: int, step: Update, left: BitTensor, form: dict[str, Any], scale: Any
    ) -> Callable[[Any], Any]:
        """Prepare a product with the weights, which keeps nothing of the left operand from one call to the next."""
        function = "LowBitNetwork"
        weights, constant = self._network.placed(self.device, number)
        rows = on_codes.row_operands(self._operand.col_scale if step.scaled else None, constant, scale)
        agree(function, f"columns before step {number} are", left.shape[1], "its weights take", weights.shape[0])
        return on_codes.product(function, left, weights, step.chain.epilogue(**form), rows)

    def _sparse_update(self, step: Update, codes: TCTiledCSR, form: dict[str, Any]) -> Callable[[Any], Any]:
        """Prepare the first step's product of sparse codes with weights, and its epilogue; this allocates memory at every call."""
        params = step_params(step, self._operand, scale_of(codes), **form)
        integers, dense = codes.with_scales(), step.weights.toarray()

        def run(out: Any) -> None:
            result = on_codes.finished(spmm(integers, dense), params)
            target = out.words if isinstance(out, BitTensor) else out
            target[...] = result.reshape(target.shape)

        return run
