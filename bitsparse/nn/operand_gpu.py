"""Graphs on a GPU as networks on bits aggregate over them: arrays of fixed addresses, whose contents may change between calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays import FRDC, BitTensor, TCTiledCSR
from bitsparse.arrays.inside import family_of
from bitsparse.arrays.packed import Encoding
from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
from bitsparse.backends.cuda.packets import CodeSums
from bitsparse.errors import ShapeError
from bitsparse.nn.operand import Form, GraphOperand
from bitsparse.ops import Epilogue, matmul, plan_spmm
from bitsparse.ops.finish.target import target_of

__all__ = ["GpuOperand", "whole_graph"]

_INT32 = np.dtype(np.int32)


class GpuOperand(GraphOperand):
    """A :class:`GraphOperand` over arrays on a GPU.

    Parameters
    ----------
    arrays
        With `indptr`, `indices`, `degrees`, `left`, `right` and `term` (degrees times `left`), as
        :class:`bitsparse.backends.cuda.packets.PacketArrays` has them.
    normalisation, self_loops, form
        As there. All but CSR copy the pattern as it is now.
    longest : int
        No row has more edges.
    whole : bool
        The pattern stays as it is, so that its long rows can be shared out.

    Notes
    -----
    Rows of a CSR pattern that is opened anew for every group may be fewer than `nodes`; the others are empty.
    """

    def __init__(
        self, arrays: Any, normalisation: str, self_loops: bool, form: Form, longest: int, whole: bool = False
    ) -> None:
        self._arrays, self._longest, self._whole = arrays, longest, whole
        self._indptr, self._indices = arrays.indptr, arrays.indices
        self.normalisation, self.self_loops, self.form = normalisation, self_loops, form
        self.nodes, self.edges = int(arrays.indptr.size) - 1, int(arrays.indices.size)
        self.device = interop.device_of(arrays.indptr)
        self.degrees, self.left, self.right = arrays.degrees, arrays.left, arrays.right

    def aggregate(
        self, columns: int, bits: int, *, encoding: str = "unsigned", epilogue: Epilogue, scaled: bool = True
    ) -> Callable[..., Any]:
        """As :meth:`GraphOperand.aggregate`; from the second call on nothing is allocated with `out`, and the host waits for nothing."""
        function = "aggregate"
        bits = _check.bit_count(function, bits, high=16)
        code = _check.encoding(function, encoding, bits)
        shape = (self.nodes, columns)
        acc = _check.accumulator(function, self._longest, max(map(abs, _check.limits_of(bits, code))), 1)
        if acc != _INT32:
            raise ValueError(
                f"{function}: sums of {self._longest} codes of {bits} bits may need more than 32 bits; pass fewer bits or "
                f"smaller parts"
            )
        if epilogue.row_scale is not None:
            raise ValueError(
                f"{function}: factors of rows are the graph's on a GPU; pass an Epilogue without row_scale"
            )
        params = epilogue.params(function, shape)
        form = self.message_form(bits)
        made: dict[str, Any] = {}

        def behind(x: BitTensor) -> dict[str, Any]:
            """What the operands add to the chain."""
            if x.offset is None:
                term = None
            elif not epilogue.offset_correction:
                raise ValueError(f"{function}: the codes have an offset; pass Epilogue(offset_correction=True)")
            else:
                own = 1.0 if epilogue._fixed.col_scale is None else interop.move(epilogue._fixed.col_scale, self.device)
                term = ((x.offset.astype(np.float64) * own) + self._nothing(columns)).astype(np.float32).reshape(-1)
            rows = self._arrays.term if scaled else self.degrees.astype(np.float32)
            return {
                "row_scale": self.left if scaled else None,
                "col_scale": None
                if x.scale is None
                else x.scale.reshape(-1)
                if x.scale.size > 1
                else x.scale.reshape(()),
                "row_term": None if term is None else (rows, term),
            }

        def run(x: BitTensor, out: Any = None) -> Any:
            if (x.shape, x.bits, x.encoding) != (shape, bits, code):
                raise ShapeError(
                    f"{function}: x is (shape, bits, encoding) {(x.shape, x.bits, x.encoding)}, but planned was {(shape, bits, code)}"
                )
            _check.same_device(function, (self.device, x.device))
            target = None if out is None else target_of(function, epilogue, out, shape, acc, self.device, (x.words,))
            codes = x.repack(**form)
            if made.get("of") is not x.offset or "sums" not in made:
                made.update(of=x.offset, sums=self._sums_of(columns, bits, code, params, behind(x)))
            result = made["sums"](codes, target)
            return epilogue.wrap(result, shape, family_of(x), function) if target is None else out

        return run

    def _nothing(self, columns: int) -> Any:
        return interop.require_cupy("aggregate").zeros(columns, np.float64)

    def _sums_of(
        self, columns: int, bits: int, code: str, params: Any, behind: dict[str, Any]
    ) -> Callable[[BitTensor, Any], Any]:
        if self.form == "csr" and not self._whole:
            layout = self.message_form(bits)["layout"]
            sums = CodeSums(self._indptr, self._indices, columns, bits, code, layout, params, behind)
            return lambda codes, out: sums(codes.words, out)
        shape = (self.nodes, columns)
        made = interop.require_cupy("aggregate").empty(shape, _INT32)
        product = (
            partial(matmul, self._adjacency)
            if self.form == "dense"
            else plan_spmm(self._adjacency, columns, bits=bits, encoding=cast(Encoding, code))
        )
        chain = DeviceEpilogue(params, shape).with_operand(**behind)
        finish = chain.on(_INT32)

        def run(codes: BitTensor, out: Any) -> Any:
            product(codes.with_affine(), out=made)
            target = chain.empty() if out is None else out
            finish.run(made, target)
            return target

        return run

    @property
    def _adjacency(self) -> Any:
        """The pattern in its form, made once."""
        if "_made" not in self.__dict__:
            entries = int(self._indptr[-1])
            ones = interop.require_cupy("aggregate").ones(entries, np.bool_)
            parts = (ones, self._indices[:entries], self._indptr)
            shape = (self.nodes, self.nodes)
            made: Any = (TCTiledCSR if self.form in ("csr", "tiled") else FRDC)(parts, shape=shape)
            self.__dict__["_made"] = made.to_bit_tensor() if self.form == "dense" else made
        return self.__dict__["_made"]

    def tiles(self) -> tuple[int, int]:
        """See :meth:`GraphOperand.tiles`; counted on the host."""
        from bitsparse.nn.operand import tiles_of

        return tiles_of(
            interop.as_host(self._indptr, "tiles", "indptr"), interop.as_host(self._indices, "tiles", "indices")
        )


def whole_graph(made: GraphOperand, device: str) -> GpuOperand:
    """An operand of the CPU on a GPU.

    Raises
    ------
    ValueError
        It has 64-bit indices.
    """
    if made._indices.dtype != np.int32:
        raise ValueError(
            f"GraphOperand: {made.edges} edges need 64-bit indices, which sums on a GPU do not take; run it in "
            f"batches (ClusterRunner)"
        )
    factor = np.ones(made.nodes) if made.left is None else made.left.astype(np.float64)
    host = {
        "indptr": made._indptr,
        "indices": made._indices,
        "degrees": made.degrees.astype(np.int32),
        "left": made.left,
        "right": made.right,
        "term": (made.degrees * factor).astype(np.float32),
    }
    arrays = {name: None if part is None else interop.move(part, device) for name, part in host.items()}
    return GpuOperand(SimpleNamespace(**arrays), made.normalisation, made.self_loops, made.form, made._longest, True)
