"""Packets of subgraphs on the GPU: unpacking into arrays at fixed addresses, and sums over patterns that change in place."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
from bitsparse.backends.cuda.sparse.checks import THREADS, streaming
from bitsparse.backends.params import EpilogueParams, OperandParams, packed_words
from bitsparse.jit import cupy

PacketParams = jit.struct("packets/open.cu", "PacketParams")
CodeSumParams = jit.struct("packets/sums.cu", "CodeSumParams")


class PacketArrays:
    """The arrays on the current device that a packet is unpacked into.

    Parameters
    ----------
    nodes, entries, chunks : int
        The most of each that a packet contains.
    table : ndarray of float32 (nodes + 1,), or None
        The factor of a node, indexed by its degree.
    sides : int
        0 for no factors, 1 for factors of rows, 2 for the same factors of rows and columns.
    words : cupy.ndarray of uint32
        Receives the words of the features of `nodes` rows.
    runs, used, stride : int
        Runs per row, bytes of a run in the packet, and bytes of a run in `words`.

    Attributes
    ----------
    indptr, indices, degrees : cupy.ndarray of int32
    left, right : cupy.ndarray of float32 (nodes,), or None
        Factors of rows and columns.
    term : cupy.ndarray of float32 (nodes,)
        Degrees times `left`.
    """

    def __init__(
        self,
        nodes: int,
        entries: int,
        chunks: int,
        table: Any,
        sides: int,
        words: Any,
        runs: int,
        used: int,
        stride: int,
    ) -> None:
        self.nodes = nodes
        self._table = None if table is None else cupy.asarray(table)
        self.indptr = cupy.zeros(nodes + 1, np.int32)
        self.indices = cupy.empty(max(entries, 1), np.int32)
        self.degrees = cupy.zeros(nodes, np.int32)
        self.left = cupy.zeros(nodes, np.float32) if sides else None
        self.right = self.left if sides == 2 else None
        self.term = cupy.zeros(nodes, np.float32)
        self._words = words
        self.params = PacketParams(room=nodes, runs=runs, used=used, stride=stride)
        arrays = {name: getattr(self, name) for name in ("indptr", "indices", "degrees", "left", "term")}
        jit.filled(self.params, **arrays, table=self._table, words=words)
        blocks = {
            "packet_start": streaming(nodes + 1),
            "packet_rows": min(chunks, streaming(THREADS * max(chunks, 1))),
            "packet_factors": streaming(nodes),
            "packet_features": streaming(words.size),
        }
        kernels = {name: jit.kernel("packets/open.cu", name) for name, count in blocks.items() if count}
        self._launches = [one.launch(blocks[name], THREADS, self.params) for name, one in kernels.items()]

    def open(self, packet: Any) -> None:
        """Enqueue the kernels that fill all arrays from a packet's bytes; a recorded graph rereads the bytes at the same address."""
        self.params.packet = packet.data.ptr
        for launch in self._launches:
            launch()

    def scatter(self, width: int) -> Callable[[Any, Any, int, Any, Any], None]:
        """``run(packet, order, low, logits, out)``, which copies each row of logits to ``out[order[low + row]]``."""
        params = PacketParams(width=width)
        blocks = max(streaming(self.nodes * width), 1)
        launch = jit.kernel("packets/open.cu", "packet_scatter").launch(blocks, THREADS, params)

        def run(packet: Any, order: Any, low: int, logits: Any, out: Any) -> None:
            params.packet, params.order, params.low = packet.data.ptr, order.data.ptr, low
            params.logits, params.out = logits.data.ptr, out.data.ptr
            launch()

        return run


class CodeSums:
    """``sums(words, out=None)``: sums of rows of codes over a pattern, followed by an epilogue.

    The pattern is read only during calls, so it may change in place. The caller has made sure that sums fit 32 bits.

    Parameters
    ----------
    indptr, indices : cupy.ndarray of int32
    columns, bits, encoding, layout
        Format of the codes, packed along the rows: ``"rows"`` for 2, 4, 8 and 16 bits, else ``"planes"``.
    epilogue : EpilogueParams
        The epilogue, with vectors on the host.
    behind : OperandParams
        What the operands contribute to the epilogue; see :meth:`DeviceEpilogue.with_operand`.
    """

    def __init__(
        self,
        indptr: Any,
        indices: Any,
        columns: int,
        bits: int,
        encoding: str,
        layout: str,
        epilogue: EpilogueParams,
        behind: OperandParams,
    ) -> None:
        rows = indptr.size - 1
        self._pattern = indptr, indices
        self._sums = cupy.empty((rows, columns), np.int32)
        planes, words = layout == "planes", packed_words(columns, bits, layout)
        # The kernel sums unsigned codes and then computes sums * times - degree * minus. XOR with `high` flips the highest bit of a signed
        # code, which adds `half` to its value; in planes the highest plane is flipped instead.
        half = 1 << (bits - 1)
        high = 0
        if encoding == "signed":
            high = 1 if planes and bits > 1 else sum(half << bits * i for i in range(32 // bits))
        times, minus = {"unsigned": (1, 0), "signed": (1, half), "bipolar": (2, 1)}[encoding]
        self.params = CodeSumParams(
            indptr.data.ptr, indices.data.ptr, None, self._sums.data.ptr, rows, columns, -(-columns // 8),
            4 * words * (bits if planes else 1), bits, planes, 4 * words, ctypes.c_int32(high & 0xFFFFFFFF).value, times, minus,
        )  # fmt: skip
        blocks = streaming(rows * self.params.octets)
        self._launch = (
            jit.kernel("packets/sums.cu", "packet_sums").launch(blocks, THREADS, self.params) if blocks else None
        )
        self._chain = DeviceEpilogue(epilogue, (rows, columns))
        self._finish = self._chain.with_operand(behind).on(self._sums.dtype)

    def __call__(self, codes: Any, out: Any = None) -> Any:
        """Enqueue the sums of the given words of codes; returns `out`, or a new array."""
        target = self._chain.empty() if out is None else out
        if self._launch is not None:
            self.params.codes = codes.data.ptr
            self._launch()
            self._finish.run(self._sums, target)
        return target


VARIANTS = [
    *jit.variants_of("packets/open.cu", "packet_rows"),
    *jit.variants_of("packets/sums.cu", "packet_sums"),
]
