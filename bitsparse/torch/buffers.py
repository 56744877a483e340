"""Arrays of this library as buffers of PyTorch modules."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from bitsparse import interop
from bitsparse.arrays.base import BitArray
from bitsparse.errors import DTypeError

#: Unsigned dtypes, for which PyTorch has few functions, and the signed ones in which they are held.
_HELD = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Precise(torch.nn.Module):
    """A module whose floating buffers move with a network but keep their dtype when the network is converted."""

    def _apply(self, function: Any, recurse: bool = True) -> Self:
        precise = {name: part for name, part in self._buffers.items() if part is not None and part.is_floating_point()}
        super()._apply(function, recurse)
        for name, part in precise.items():
            moved = self._buffers[name]
            if moved is not None and moved.dtype != part.dtype:
                self._buffers[name] = part.to(moved.device)
        return self


class Buffer(Precise):
    """A BitTensor, TCTiledCSR or FRDC whose components are buffers of a module: they move, are saved and copied with it.

    Parameters
    ----------
    array : BitTensor, TCTiledCSR or FRDC
        Its memory is shared, not copied.

    Attributes
    ----------
    array : BitTensor, TCTiledCSR or FRDC
        An array over the memory of the buffers; functions of it return tensors. It is rebuilt and checked again after the buffers have
        moved or were written to.

    Raises
    ------
    DTypeError
        `array` is none of these types.

    Notes
    -----
    ``state_dict`` holds the components under their names, and the shape and format as numbers and text; ``torch.load`` reads it with
    ``weights_only=True``, and it loads into a Buffer of the same shape and format. Unsigned words are held as signed integers of the
    same bits. Scales, offsets and values keep their dtype under ``.half()`` and similar conversions.

    Examples
    --------
    >>> import torch
    >>> import bitsparse as bs
    >>> import bitsparse.torch as bst
    >>> class Lookup(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.table = bst.Buffer(bs.BitTensor([[1, 2], [3, 0]], 2))
    ...
    ...     def forward(self, x):
    ...         return bs.matmul(self.table.array, bs.BitTensor(x, 4, axis=-2))
    >>> net = Lookup()
    >>> net(torch.tensor([[1], [5]]))
    tensor([[11],
            [ 3]], dtype=torch.int32)
    >>> list(net.state_dict())
    ['table.words', 'table._extra_state']
    """

    def __init__(self, array: BitArray) -> None:
        super().__init__()
        if not isinstance(array, BitArray):
            raise DTypeError(
                f"Buffer: array is a {type(array).__name__}; pass a BitTensor, TCTiledCSR or FRDC, and tensors to register_buffer"
            )
        self._kind, self._settings = type(array), array.settings()
        self._array: tuple[Any, Any] = (None, None)
        self._dtypes: dict[str, torch.dtype] = {}
        for name, part in array.components().items():
            tensor = None if part is None else interop.from_array(part, interop.TORCH, "Buffer")
            if tensor is not None and tensor.dtype in _HELD:
                self._dtypes[name] = tensor.dtype
                tensor = tensor.view(_HELD[tensor.dtype])
            self.register_buffer(name, tensor)

    @property
    def array(self) -> Any:
        """An array over the memory of the buffers."""
        state = tuple(state_of(part) for part in self._buffers.values())
        if self._array[0] != state:
            parts = {
                name: part if part is None or name not in self._dtypes else part.view(self._dtypes[name])
                for name, part in self._buffers.items()
            }
            self._array = (state, getattr(self._kind, self._kind.adopting)(**parts, **self._settings))
        return self._array[1]

    def get_extra_state(self) -> dict[str, Any]:
        """Return type, shape and format, for ``state_dict``."""
        return {"type": self._kind.__name__, **self._settings}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Refuse the state of another array, for ``load_state_dict``."""
        if state != self.get_extra_state():
            raise ValueError(
                f"Buffer: the state is of {state}, but this one holds {self.get_extra_state()}; make the Buffer of an array like the one "
                f"that was saved"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": (None, None)}

    def extra_repr(self) -> str:
        """Type, shape and format, for ``repr``."""
        return ", ".join([self._kind.__name__, *(f"{name}={part}" for name, part in self._settings.items())])


def writes_of(part: Tensor) -> int:
    """How often a tensor was written to; always 0 for tensors made under inference_mode(), which do not count it."""
    return 0 if part.is_inference() else part._version


def state_of(part: Tensor | None) -> tuple[int, int] | None:
    """A tensor's address and how often it was written to, as :func:`writes_of` counts."""
    return None if part is None else (part.data_ptr(), writes_of(part))
