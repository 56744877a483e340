"""Float matrices that gradients need, kept in few bits: packed without gaps, and written and read in pieces of whole rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bitsparse import backends, interop
from bitsparse._records import replace
from bitsparse.backends.params import Sides, packed_words
from bitsparse.backends.row_pieces import RowPieces
from bitsparse.ops.bits.pack import pack_bits
from bitsparse.ops.quantized.scaled import on_steps
from bitsparse.torch.coded import Source, array_of, working

_NAME = "bitsparse.torch"

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
    below: int = 0
    #: Whether all values that are not positive map to `-top`, to which no others map.
    marked: bool = False

    @property
    def sides(self) -> Sides | None:
        """What a quantiser does besides dividing by the step."""
        return Sides(self.zero, self.below, self.marked) if self.zero or self.below or self.marked else None

    def values(self, numbers: Tensor) -> Tensor:
        """The floats that whole numbers stand for."""
        above = numbers - self.zero
        if self.marked:
            above = above.clamp(min=0)
        elif self.below:
            above = torch.where(above < 0, above / (self.below * self.step), above)
        return above * self.step


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
    # A GPU would multiply by the reciprocal of a number, which may round otherwise than a division.
    step = largest.float() / torch.full_like(largest, steps, dtype=torch.float32)
    return torch.where(step < torch.finfo(torch.float32).smallest_normal, 1.0, step + step * 0)


class PackedRows:
    """Codes of 1, 2, 4 or 8 bits, one for each element of a tensor (N, ...) and without gaps; read, if need be, in pieces of whole rows."""

    def __init__(self, shape: torch.Size, bits: int, device: torch.device) -> None:
        self.shape, self.bits = shape, bits
        self.words = torch.empty(packed_words(math.prod(shape), bits, "rows"), dtype=torch.int32, device=device)

    @property
    def rows(self) -> Iterator[slice]:
        """The rows of each piece, in order."""
        count, columns = self.shape[0], math.prod(self.shape[1:])
        if columns:
            least, most = PIECE_BYTES
            piece = min(max(4 * columns * count // _PIECES, least), most)
            step = max(piece // (4 * columns * _WIDTH), 1) * _WIDTH
            yield from (slice(start, min(start + step, count)) for start in range(0, count, step))

    def _words(self, first: int, size: int) -> Any:
        """The words of `size` codes from number `first`, a multiple of `_WIDTH`, on."""
        start = first * self.bits // 32
        words = self.words[start : start + packed_words(size, self.bits, "rows")]
        return interop.as_array(words, _NAME)[0].view(np.uint32)

    def write(self, rows: slice, numbers: Tensor, pack: Callable[[Any, int, Any], None]) -> None:
        """Write the codes of some rows: ``pack(matrix, first, words)`` packs numbers whose first is number `first` of all."""
        flat, first = numbers.reshape(-1), rows.start * math.prod(self.shape[1:])
        whole = len(flat) - len(flat) % _WIDTH
        for start, block in ((0, flat[:whole].view(-1, _WIDTH)), (whole, flat[whole:].view(1, -1))):
            if block.numel():
                with working(block) as array:
                    words = self._words(first + start, block.numel())
                    pack(array, first + start, words.reshape(len(block), -1))

    def values(self, rows: slice, table: Tensor) -> Tensor:
        """What ``table`` holds for the codes of some rows."""
        made = table.new_empty((rows.stop - rows.start, *self.shape[1:]))
        self._look_up(rows.start, made, table)
        return made

    def times(self, gradient: Tensor, table: Tensor) -> Tensor:
        """A gradient times what ``table`` holds for the codes."""
        gradient = gradient.contiguous()
        made = torch.empty_like(gradient)
        self._look_up(0, made, table, gradient)
        return made

    def _look_up(self, row: int, out: Tensor, table: Tensor, times: Tensor | None = None) -> None:
        if not out.numel():
            return
        with working(out) as into:
            words = self._words(row * math.prod(self.shape[1:]), out.numel())
            factors = None if times is None else array_of(times).reshape(-1)
            backend = backends.family(interop.device_of(words), "bits.look_up")
            flat = into.reshape(-1)
            backend.look_up(words, flat.size, self.bits, table=array_of(table), times=factors, out=flat)


def packed_mask(shape: torch.Size, device: torch.device, mask: Callable[[slice], Tensor]) -> PackedRows:
    """Pack one bit per element of a mask that ``mask(rows)`` computes for some rows at a time."""

    def pack(array: Any, first: int, words: Any) -> None:
        words[...] = pack_bits(array, 1).words.reshape(words.shape)

    made = PackedRows(shape, 1, device)
    for rows in made.rows:
        made.write(rows, mask(rows), pack)
    return made


class KeptCodes:
    """A float matrix (N, ...) as unbiased codes, rounded after a map that `map_of` chooses."""

    def __init__(self, x: Tensor, bits: int, source: Source, map_of: Callable[[Tensor, int], Map] = signed_map) -> None:
        self.packed = PackedRows(x.shape, bits, x.device)
        self._table = x.new_zeros(1 << bits)
        if not x.numel():
            return
        x, top = x.detach(), (1 << (bits - 1)) - 1
        made, coding = map_of(x, top), source.coding(x, bits)
        step = array_of(made.step)

        def pack(array: Any, first: int, words: Any) -> None:
            how = replace(coding, first_index=first)
            on_steps(array, interop.TORCH, step, step, how, top, sides=made.sides, out=words)

        # A GPU maps numbers while it loads them, but on the CPU some maps make copies, which should be small.
        for rows in [slice(0, len(x))] if x.is_cuda else self.packed.rows:
            self.packed.write(rows, x[rows], pack)
        self._table = self.table(made.values)

    def table(self, values: Callable[[Tensor], Tensor]) -> Tensor:
        """What each code stands for: ``values(numbers)`` for the whole number of each code."""
        codes = 1 << self.packed.bits
        numbers = torch.arange(codes, device=self.packed.words.device)
        return values(torch.where(numbers < codes // 2, numbers, numbers - codes).float())

    def slopes_of_relu(self) -> Tensor:
        """For each code of a result of relu, 1 if relu let its input pass, else 0."""
        top = (1 << (self.packed.bits - 1)) - 1
        return self.table(lambda numbers: (numbers > -top).float())

    def slopes_of_elu(self) -> Tensor:
        """For each code of a result y of elu, the slope there: 1, or 1 + y below 0."""
        return self._table.clamp(max=0) + 1

    def codes(self, x: Tensor, bits: int, source: Source) -> KeptCodes:
        """Return itself: the codes of the matrix, as :class:`KeptRelu` and :class:`KeptElu` return theirs."""
        return self

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        return ((rows, self.packed.values(rows, self._table)) for rows in self.packed.rows)

    def in_pieces(self, columns: int) -> RowPieces:
        """The decoded values as a matrix with `columns` columns, which a backend reads piece by piece."""
        pieces = list(self.packed.rows)
        return RowPieces(
            (self.packed.shape[0], columns),
            pieces,
            lambda i: array_of(self.packed.values(pieces[i], self._table).reshape(-1, columns)),
        )

    def over_rows(self, gradient: Tensor) -> Tensor:
        """``gradient.T @ x`` for the matrix that the codes stand for."""
        made = gradient.new_zeros((gradient.shape[1], self.packed.shape[1]))
        for rows, values in self:
            made.addmm_(gradient[rows].t(), values.to(gradient.dtype))
        return made


class KeptRelu:
    """Where relu let its input pass: one bit per element, until codes of its result are kept, from which this follows too."""

    def __init__(self, x: Tensor) -> None:
        self._mask: PackedRows | None = packed_mask(x.shape, x.device, lambda rows: x[rows] > 0)
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
            return self.packed.times(gradient, torch.arange(2, dtype=gradient.dtype, device=gradient.device))
        return self.packed.times(gradient, self._codes.slopes_of_relu())


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
        return self.packed.times(gradient, self._codes.slopes_of_elu())
