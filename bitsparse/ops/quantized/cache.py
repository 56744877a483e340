"""A cache of quantised arrays: each array is quantised once, and the backward pass reuses codes of the forward pass (TANGO section 3.2)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse._fork import fresh_in_children
from bitsparse._records import as_dict
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import contents_of_words
from bitsparse.errors import DeviceError, DTypeError, ShapeError
from bitsparse.interop.identity import Memory, memory_of
from bitsparse.ops.bits.pack import quantize
from bitsparse.ops.finish import schemes

_CHECKS = ("content", "version", "never")


class CacheInfo(NamedTuple):
    """The counts that :meth:`QuantCache.info` returns."""

    hits: int
    misses: int
    repacks: int
    evictions: int
    entries: int
    nbytes: int


@dataclass
class _Entry:
    """The codes of one array for one set of options, in each packed form that was asked for, and the arrays that they belong to."""

    version: int | None
    #: Codes by packed axis and layout, each with the version of its contents.
    forms: dict[tuple[int, str], tuple[BitTensor, int]] = field(default_factory=dict)
    #: The arrays with this content: by owner and view of their memory, a function that tells whether they still exist.
    holders: dict[tuple[Hashable, Hashable], Callable[[], bool]] = field(default_factory=dict)
    #: Whether an object that cannot be watched, such as a list, has asked for the codes.
    lasting: bool = False
    ready: interop.Ready = field(default_factory=interop.Ready)

    @property
    def nbytes(self) -> int:
        return sum(codes.nbytes for codes, _ in self.forms.values())

    def add(self, form: tuple[int, str], codes: BitTensor) -> None:
        self.forms[form] = codes, contents_of_words(codes).version

    def overwritten(self) -> bool:
        """Whether codes that were handed out have been overwritten since, as the `out` of some call."""
        return any(contents_of_words(codes).version != version for codes, version in self.forms.values())

    def alive(self) -> bool:
        return self.lasting or any(alive() for alive in self.holders.values())


class _Wanted(NamedTuple):
    """A request: what identifies the codes, the form asked for, and the array's memory."""

    key: tuple[Hashable, ...]
    form: tuple[int, str]
    memory: Memory | None
    version: int | None
    device: str
    family: interop.Family


class QuantCache:
    """Keeps the codes of arrays, so that an array is quantised only once for several consumers and a later backward pass.

    Codes do not depend on how they are packed: for another axis or another layout, kept codes are repacked, not computed again. With
    ``rounding="stochastic"`` and ``seed=None`` the first draw is kept, so that forward and backward pass use the same numbers.

    Parameters
    ----------
    max_bytes : int, optional
        Bound for the packed words and scales; the least recently used codes go first. Codes that alone exceed it are not kept.
    check : {"content", "version", "never"}
        How the cache recognises an array that may have changed since an earlier call:

        * ``"content"``: by a 64-bit fingerprint of all its bytes, computed at every call. No change is missed, whoever made it,
          except with a chance of one in 2**64; equal arrays share their codes. It costs reading the array once (quantising reads it
          twice) and, on a GPU, waiting for the stream.
        * ``"version"``: by its memory and the version that its library counts, at no cost. It works for PyTorch tensors, as in
          PyTorch's autograd, and for JAX arrays, which never change; others are refused. Changes that PyTorch does not count are not
          seen: through ``tensor.data``, a NumPy view, DLPack (our `out=` as well) or a pointer. Call :meth:`invalidate` after them.
        * ``"never"``: by its memory alone, at no cost. Whoever writes to the array must call :meth:`invalidate`.

    Notes
    -----
    Arrays are not kept alive. Codes are dropped at the first call after all their arrays have other content or no longer exist, and a
    new array at an old address is not taken for the old array. Lists cannot be watched: their codes stay until `max_bytes` evicts
    them or :meth:`clear` is called.

    The BitTensors are shared: treat them as read-only. Calls from several threads are safe and quantise once. A stream that gets codes
    from another stream waits for them; as with any CuPy array, keep the codes until all work that reads them there is done. The array
    itself must not change during a call. A copy or a pickle is an empty cache with the same settings, since codes belong to arrays in the
    memory of this process.

    Examples
    --------
    >>> cache = bs.QuantCache()
    >>> x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    >>> q = cache.quantize(x, 8, scheme="symmetric")
    >>> cache.quantize(x, 8, scheme="symmetric") is q
    True
    >>> cache.quantize(x, 8, scheme="symmetric", axis=-2).axis  # the same codes
    -2
    >>> x[0, 0] = 7
    >>> cache.quantize(x, 8, scheme="symmetric").toarray()[0, 0]
    np.int8(127)
    >>> cache.info()
    CacheInfo(hits=2, misses=2, repacks=1, evictions=0, entries=1, nbytes=388)
    """

    _lock: threading.RLock
    _making: dict[tuple[Hashable, ...], Future[None]]

    def __init__(
        self, *, max_bytes: int | None = None, check: Literal["content", "version", "never"] = "content"
    ) -> None:
        self.max_bytes = None if max_bytes is None else _check.integer("QuantCache", "max_bytes", max_bytes, 0)
        self.check = _check.choice("QuantCache", "check", check, _CHECKS)
        self._entries: OrderedDict[tuple[Hashable, ...], _Entry] = OrderedDict()
        fresh_in_children(self, _lock=threading.RLock, _making=dict)
        self._hits = self._misses = self._repacks = self._evictions = 0

    def __reduce__(self) -> tuple[Callable[[], QuantCache], tuple[()]]:
        settings: dict[str, Any] = {"max_bytes": self.max_bytes, "check": self.check}
        return partial(type(self), **settings), ()

    # -- asking ---------------------------------------------------------------------------------------------------
    def quantize(self, x: Any, bits: int, *, axis: int = -1, layout: Any = "planes", **options: Any) -> BitTensor:
        """Return the result of :func:`bitsparse.quantize`, kept from an earlier call for this array, bits and options if possible.

        Raises
        ------
        DTypeError
            ``check="version"`` and `x` has no version; or as in :func:`bitsparse.quantize`.
        DeviceError
            ``check="content"`` while the stream is capturing, as nothing can wait for it then.
        """
        function = "QuantCache.quantize"
        wanted = self._wanted(function, x, bits, axis, layout, options)
        while True:
            with self._lock:
                found = self._take(wanted)
                making = self._making.get(wanted.key)
                if found is None and making is None:
                    self._making[wanted.key] = Future()
                    self._misses += 1
                    break
            if found is not None:
                return found
            assert making is not None
            making.exception()  # wait for the thread that is quantising; if it fails, try again here
        try:
            made = quantize(x, bits, axis=axis, layout=layout, **options)
            self._put(wanted, made)
            return made
        finally:
            with self._lock:
                self._making.pop(wanted.key).set_result(None)

    def find(self, x: Any, bits: int, *, axis: int = -1, layout: Any = "planes", **options: Any) -> BitTensor | None:
        """The kept codes that :meth:`quantize` would return, or None; for functions that quantise by themselves (see :meth:`keep`)."""
        wanted = self._wanted("QuantCache.find", x, bits, axis, layout, options)
        with self._lock:
            found = self._take(wanted)
            self._misses += found is None
        return found

    def keep(self, x: Any, q: BitTensor, **options: Any) -> None:
        """Keep codes that were computed elsewhere.

        Parameters
        ----------
        x : array_like
            The array, unchanged since it was quantised.
        q : BitTensor
            Exactly what ``bs.quantize(x, q.bits, axis=q.axis, layout=q.layout, **options)`` returns.

        Raises
        ------
        DTypeError, ShapeError, ValueError, DeviceError
            `q` has another shape, encoding or device than these codes.
        """
        function = "QuantCache.keep"
        if not isinstance(q, BitTensor):
            raise DTypeError(f"{function}: q is a {type(q).__name__}; pass the BitTensor of the codes")
        wanted = self._wanted(function, x, q.bits, q.axis, q.layout, options)
        shape = tuple(np.shape(x) if isinstance(x, (list, tuple)) else x.shape)
        if q.shape != shape:
            raise ShapeError(
                f"{function}: q has shape {q.shape} but x has shape {shape}; pass the codes of this very array"
            )
        encoding = "signed" if options.get("scheme") == "symmetric" else "unsigned"
        if q.encoding != encoding or q.scale is None:
            raise ValueError(
                f"{function}: q is {q.encoding} with scale {q.scale}, but scheme={_check.shown(options.get('scheme', 'affine'))} makes "
                f"{encoding} codes with a scale"
            )
        _check.same_device(function, (wanted.device, q.device))
        self._put(wanted, q)

    # -- forgetting -------------------------------------------------------------------------------------------------
    def invalidate(self, x: Any = None) -> None:
        """Forget the codes of an array that was written to, and of views of it in its library; by default, of all arrays.

        Arrays that were created separately over the same memory (by another library, or by two calls of ``np.frombuffer``) are not
        recognised: pass each of them, or none.
        """
        memory = None if x is None else memory_of(x)
        with self._lock:
            for key, entry in list(self._entries.items()):
                if x is None or (memory is not None and any(owner == memory.owner for owner, _ in entry.holders)):
                    del self._entries[key]

    def clear(self) -> None:
        """Forget all codes and reset the counts."""
        with self._lock:
            self._entries.clear()
            self._hits = self._misses = self._repacks = self._evictions = 0

    # -- what it holds ------------------------------------------------------------------------------------------------
    def info(self) -> CacheInfo:
        """The numbers of hits, misses, repacked hits and evictions, and of the entries and bytes that are held."""
        with self._lock:
            self._purge()
            counts = (self._hits, self._misses, self._repacks, self._evictions)
            return CacheInfo(*counts, len(self._entries), self.nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of words, scales and offsets that are held."""
        with self._lock:
            return sum(entry.nbytes for entry in self._entries.values())

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def __repr__(self) -> str:
        text = ", ".join(f"{name}={value}" for name, value in as_dict(self.info()).items())
        return f"<QuantCache check={self.check!r} {text}>"

    # -- inside -------------------------------------------------------------------------------------------------------
    def _wanted(self, function: str, x: Any, bits: int, axis: Any, layout: Any, options: dict[str, Any]) -> _Wanted:
        array, family = interop.as_array(x, function, kinds="biuf")
        _check.at_least_2d(function, "x", array.shape)
        way = _way(function, bits, **options)
        form = _check.axis(function, axis, array.ndim), _check.layout(function, layout, way[0])
        device, memory = interop.device_of(array), memory_of(x)
        version = None
        if self.check == "content":
            seen: Hashable = self._content(function, array, device, family)
        else:
            if memory is None or (self.check == "version" and memory.version is None):
                remedy = "'content'" if memory is None else "'content', or 'never' and invalidate()"
                raise DTypeError(
                    f"{function}: check={_check.shown(self.check)} cannot see changes of x, a {type(x).__module__}.{type(x).__name__}; use "
                    f"check={remedy}"
                )
            seen, version = (memory.owner, memory.view), memory.version if self.check == "version" else None
        key = (seen, array.shape, array.dtype.name, device, family.name, way)
        return _Wanted(key, form, memory, version, device, family)

    def _content(self, function: str, array: Any, device: str, family: interop.Family) -> int:
        with interop.working_on(device, family):
            if interop.is_capturing(device):
                raise DeviceError(
                    f"{function}: check='content' reads x and waits for it, but its stream is capturing; ask before the "
                    f"capture, or use check='version'"
                )
            return int(backends.family(device, "bits.pack").content_sum(array))

    def _take(self, wanted: _Wanted) -> BitTensor | None:
        """The codes in the form asked for, or None; the caller holds the lock."""
        entry = self._entries.get(wanted.key)
        if entry is None:
            return None
        gone = entry.overwritten() or not (entry.alive() or self.check == "content")
        if entry.version != wanted.version or gone:
            del self._entries[wanted.key]
            return None
        self._entries.move_to_end(wanted.key)
        with interop.working_on(wanted.device, wanted.family):
            if wanted.device != "cpu":
                entry.ready.wait()
            if wanted.form not in entry.forms:
                if interop.is_capturing(wanted.device):
                    raise DeviceError(
                        f"QuantCache: codes packed as {wanted.form} would have to be made while the stream is capturing; ask "
                        f"for them before"
                    )
                axis, layout = wanted.form
                some: BitTensor = next(iter(entry.forms.values()))[0]
                entry.add(wanted.form, some.repack(axis=axis, layout=layout))  # type: ignore[arg-type]
                self._repacks += 1
                if wanted.device != "cpu":
                    entry.ready.renew()
        self._hits += 1
        found = entry.forms[wanted.form][0]
        self._hold(wanted, entry)
        self._shrink()
        return found

    def _hold(self, wanted: _Wanted, entry: _Entry) -> None:
        """Note that the entry is kept for this array, and that entries for its earlier content are not."""
        if wanted.memory is None:
            entry.lasting = True
            return
        place = wanted.memory.owner, wanted.memory.view
        for key, other in list(self._entries.items()):
            if other is not entry and key[1:] == wanted.key[1:] and place in other.holders:
                del other.holders[place]
                if not other.alive():
                    del self._entries[key]
        entry.holders[place] = wanted.memory.alive

    def _put(self, wanted: _Wanted, made: BitTensor) -> None:
        with self._lock, interop.working_on(wanted.device, wanted.family):
            entry = _Entry(wanted.version)
            entry.add(wanted.form, made)
            self._hold(wanted, entry)
            if self.max_bytes is not None and entry.nbytes > self.max_bytes:  # too large even for an empty cache
                self._entries.pop(wanted.key, None)
                self._evictions += 1
                return
            if wanted.device != "cpu":
                entry.ready.renew()
            self._entries[wanted.key] = entry
            self._entries.move_to_end(wanted.key)
            self._purge()
            self._shrink()

    def _purge(self) -> None:
        for key, entry in list(self._entries.items()):
            if not entry.alive():
                del self._entries[key]

    def _shrink(self) -> None:
        while self.max_bytes is not None and self._entries and self.nbytes > self.max_bytes:
            self._entries.popitem(last=False)
            self._evictions += 1


def _way(
    function: str,
    bits: Any,
    *,
    scheme: Any = "affine",
    rounding: Any = None,
    range: Any = None,
    granularity: Any = "tensor",
    seed: Any = None,
    stream: Any = 0,
) -> tuple[Any, ...]:
    """The options of :func:`bitsparse.quantize` that determine the codes, checked and in a form that can be compared."""
    options = schemes.checked_options(function, bits, scheme, rounding, granularity, seed, stream)
    ends = range if isinstance(range, (tuple, list)) else () if range is None else (range,)
    given = [np.asarray(interop.as_host(end, function, "range"), np.float64) for end in ends]
    return *options[:4], seed, stream, tuple((end.shape, end.tobytes()) for end in given)
