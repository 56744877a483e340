"""Float matrices that gradients need, kept in few bits: packed without gaps, and written and read in pieces of whole rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitsparse import interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.backends.row_pieces import RowPieces
from bitsparse.ops.bits.pack import pack_bits
from bitsparse.ops.quantized.scaled import on_steps
from bitsparse.torch.coded import Source, tensor_of, working

#: The least and most bytes of floats decoded at a time; in between, a piece is one part in `_PIECES` of the matrix.
PIECE_BYTES, _PIECES = (1 << 22, 1 << 27), 16
#: Codes per packed row, chosen so that no row needs padding; the rows of a piece are a multiple of it.
_WIDTH = 1024


class Map(NamedTuple):
    """A map of floats onto the scale from ``-top`` to ``top``, on which they are rounded to whole numbers, and its inverse.

    0 maps to a whole number, and the map is linear on both sides of it; so unbiased rounding stays unbiased after the inverse.
    """

    #: The step of the positive side, a tensor of one element; NaN if something is not finite.
    step: Tensor
    top: int
    #: The whole number to which 0 maps.
    zero: int
    #: The number of steps from -1 to 0, if the negative side has steps of its own.
    below: int | None = None
    #: Whether all values that are not positive map to `-top`, to which no others map.
    marked: bool = False

    def numbers(self, x: Tensor) -> Tensor:
        """Map floats, into new memory."""
        made = x / self.step
        if self.below is not None:
            made = torch.where(x < 0, x * self.below, made)
        made += self.zero
        return made.masked_fill_(x <= 0, -self.top) if self.marked else made

    def values(self, numbers: Tensor) -> Tensor:
        """The floats that whole numbers stand for; overwrites `numbers`."""
        numbers -= self.zero
        if self.marked:
            numbers.clamp_(min=0)
        elif self.below is not None:
            numbers = torch.where(numbers < 0, numbers / (self.below * self.step), numbers)
        return numbers.mul_(self.step)


def signed_map(x: Tensor, top: int) -> Map:
    """The map with equal steps on both sides of 0."""
    return Map(_step(torch.linalg.vector_norm(x, math.inf), top), top, 0)


def relu_map(x: Tensor, top: int) -> Map:
    """The map for outputs of relu: zeros have a number of their own, so that they can be recognised again."""
    return Map(_step(x.amax(), max(2 * top - 1, 1)), top, 1 - top, marked=True)


def elu_map(x: Tensor, top: int) -> Map:
    """The map for outputs of elu: a third of the steps lie between -1 and 0."""
    below = -(-2 * top // 3)
    return Map(_step(x.amax().clamp(min=0), 2 * top - below), top, below - top, below)


def _step(largest: Tensor, steps: int) -> Tensor:
    """The size of one of `steps` steps up to `largest`; 1 if `largest` is next to nothing."""
    step = largest.float() / steps
    return torch.where(step < torch.finfo(torch.float32).smallest_normal, 1.0, step + step * 0)


class PackedRows:
    """Whole numbers of few bits, one for each element of a tensor (N, ...), in pieces of whole rows."""

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape
        self._pieces: list[list[BitTensor]] = []

    @property
    def rows(self) -> Iterator[slice]:
        """The rows of each piece, in order."""
        count, columns = self.shape[0], math.prod(self.shape[1:])
        if columns:
            least, most = PIECE_BYTES
            piece = min(max(4 * columns * count // _PIECES, least), most)
            step = max(piece // (4 * columns * _WIDTH), 1) * _WIDTH
            yield from (slice(start, min(start + step, count)) for start in range(0, count, step))

    def append(self, numbers: Tensor, pack: Callable[[Any, int], BitTensor]) -> None:
        """Pack the next piece: ``pack(matrix, start)`` packs numbers whose first is number `start` of the piece."""
        flat = numbers.reshape(-1)
        whole = len(flat) - len(flat) % _WIDTH
        parts: list[BitTensor] = []
        for start, block in ((0, flat[:whole].view(-1, _WIDTH)), (whole, flat[whole:].view(1, -1))):
            if block.numel():
                with working(block) as array:
                    parts.append(pack(array, start))
        self._pieces.append(parts)

    def piece(self, index: int, rows: slice) -> Tensor:
        """The whole numbers of a piece, in new memory."""
        made = [tensor_of(part.dequantize()).reshape(-1) for part in self._pieces[index]]
        return (made[0] if len(made) == 1 else torch.cat(made)).view(rows.stop - rows.start, *self.shape[1:])

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        return ((rows, self.piece(i, rows)) for i, rows in enumerate(self.rows))

    @property
    def bit_tensors(self) -> list[BitTensor]:
        """The packed numbers, piece by piece."""
        return [part for parts in self._pieces for part in parts]

    def times(self, gradient: Tensor, factor: Callable[[Tensor], Tensor] = lambda numbers: numbers) -> Tensor:
        """A gradient times ``factor(numbers)``, piece by piece."""
        made = torch.empty(gradient.shape, dtype=gradient.dtype, device=gradient.device)
        with working(gradient[:0]):
            for rows, numbers in self:
                torch.mul(gradient[rows], factor(numbers), out=made[rows])
        return made


def packed_mask(shape: torch.Size, mask: Callable[[slice], Tensor]) -> PackedRows:
    """Pack one bit per element of a mask that ``mask(rows)`` computes for some rows at a time."""
    made = PackedRows(shape)
    for rows in made.rows:
        made.append(mask(rows), lambda array, start: pack_bits(array, 1))
    return made


class KeptCodes:
    """A float matrix (N, ...) as unbiased codes, rounded after a map that `map_of` chooses."""

    def __init__(self, x: Tensor, bits: int, source: Source, map_of: Callable[[Tensor, int], Map] = signed_map) -> None:
        self.packed = PackedRows(x.shape)
        if not x.numel():
            return
        top = (1 << (bits - 1)) - 1
        self._map, coding, columns = map_of(x.detach(), top), source.coding(x, bits), math.prod(x.shape[1:])
        one = interop.as_array(torch.ones((), device=x.device), "bitsparse.torch")[0]
        for rows in self.packed.rows:
            first = rows.start * columns

            def pack(array: Any, start: int, first: int = first) -> BitTensor:
                return on_steps(array, interop.TORCH, one, one, coding._replace(first_index=first + start), top)

            self.packed.append(self._map.numbers(x.detach()[rows].float()), pack)

    def values(self, numbers: Tensor) -> Tensor:
        """The floats that whole numbers stand for; overwrites `numbers`."""
        return self._map.values(numbers)

    def passed(self, numbers: Tensor) -> Tensor:
        """1 where relu let its input pass, else 0."""
        return (numbers > -self._map.top).to(numbers.dtype)

    def codes(self, x: Tensor, bits: int, source: Source) -> KeptCodes:
        """Return itself: the codes of the matrix, as :class:`KeptRelu` and :class:`KeptElu` return theirs."""
        return self

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        return ((rows, self.values(numbers)) for rows, numbers in self.packed)

    def in_pieces(self, columns: int) -> RowPieces:
        """The decoded values as a matrix with `columns` columns, which a backend reads piece by piece."""
        pieces = list(self.packed.rows)

        def make(index: int) -> Any:
            values = self.values(self.packed.piece(index, pieces[index]))
            return interop.as_array(values.reshape(-1, columns), "bitsparse.torch")[0]

        return RowPieces((self.packed.shape[0], columns), pieces, make)

    def over_rows(self, gradient: Tensor) -> Tensor:
        """``gradient.T @ x`` for the matrix that the codes stand for."""
        made = gradient.new_zeros((gradient.shape[1], self.packed.shape[1]))
        with working(gradient[:0]):
            for rows, values in self:
                made.addmm_(gradient[rows].t(), values.to(gradient.dtype))
        return made


class KeptRelu:
    """Where relu let its input pass: one bit per element, until codes of its result are kept, from which this follows too."""

    def __init__(self, x: Tensor) -> None:
        self._mask: PackedRows | None = packed_mask(x.shape, lambda rows: x[rows] > 0)
        self._codes: KeptCodes | None = None

    @property
    def packed(self) -> PackedRows:
        """The packed bits or codes."""
        found = self._mask if self._codes is None else self._codes.packed
        assert found is not None
        return found

    def codes(self, y: Tensor, bits: int, source: Source) -> KeptCodes:
        """Codes of the result, which replace the bits."""
        if self._codes is None:
            self._codes, self._mask = KeptCodes(y, bits, source, relu_map), None
        return self._codes

    def times(self, gradient: Tensor) -> Tensor:
        """The gradient by the input of relu."""
        if self._codes is None:
            return self.packed.times(gradient)
        return self.packed.times(gradient, self._codes.passed)


class KeptElu:
    """The result y of elu as codes, from which its slope follows: 1, or 1 + y below 0, which is linear in the rounded y."""

    def __init__(self, y: Tensor, bits: int, source: Source) -> None:
        self._codes = KeptCodes(y, bits, source, elu_map)
        self.packed = self._codes.packed

    def codes(self, y: Tensor, bits: int, source: Source) -> KeptCodes:
        """Codes of the result."""
        return self._codes

    def times(self, gradient: Tensor) -> Tensor:
        """The gradient by the input of elu."""
        return self.packed.times(gradient, lambda numbers: self._codes.values(numbers).clamp_(max=0).add_(1))
