"""Cases of suite ``host`` that build the sparse formats.

- ``translate-COLLAB``, ``frdc-COLLAB``: the CSR pattern of COLLAB (24.6 M entries) to the component arrays of TCTiledCSR and
  FRDC, including all checks of the input. ``frdc-to-csr-COLLAB``: the way back. The peer is SciPy's ``tocsc()`` of the same array with
  float32 values. Before timing, the peak memory of one call is sampled every half millisecond (``peak_growth_bytes``) and compared with
  input + output + 20 %; a call that exceeds this is an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import graphs
from bitsparse.backends.host.sparse import build
from bitsparse.bench import Case, Prepared, Unavailable

ROOT = Path(__file__).resolve().parents[2]

__all__ = ["cases"]

Array = Any
Arrays = tuple[Any, ...]
#: Takes the result of :func:`bitsparse.backends.host.sparse.build.frdc` unchanged.
FRDC_TO_CSR: Callable[..., Arrays] = build.frdc_to_csr


CONVERSIONS = ("translate", "frdc", "frdc-to-csr")


def cases() -> list[Case]:
    """The cases of this file."""
    return [Case(f"{what}-COLLAB", partial(convert, what, "COLLAB")) for what in CONVERSIONS]


def conversion(what: str, indptr: Array, indices: Array, shape: tuple[int, int]) -> tuple[Arrays, Callable[[], Arrays]]:
    """The input of a conversion, and the call."""
    pattern = indptr.copy(), indices.copy()  # copies use up memory that reading freed
    if what == "translate":
        return pattern, lambda: build.translate(*pattern, shape, 16)
    if what == "frdc":
        return pattern, lambda: build.frdc(*pattern, shape)
    parts = tuple(part.copy() for part in build.frdc(*pattern, shape))
    return parts, lambda: FRDC_TO_CSR(*parts, shape)


def convert(what: str, graph: str) -> Prepared:
    """One conversion, against SciPy's conversion from rows to columns."""
    import scipy
    from scipy import sparse

    data, source = graphs.graph(graph)
    indptr, indices, shape = data.indptr, data.indices, (data.num_nodes, data.num_nodes)
    peer_array = sparse.csr_array((np.ones(indices.size, np.float32), indices, indptr), shape=shape)
    parts, ours = conversion(what, indptr, indices, shape)
    grown, made = growth_in_fresh_process(what, graph), ours()
    given, output = (sum(part.nbytes for part in arrays) for arrays in (parts, made))
    if given + grown > 1.2 * (given + output):
        raise AssertionError(f"{what}: {grown} bytes more at the peak for {given} of input and {output} of output")
    back = made
    if what == "frdc":
        back = FRDC_TO_CSR(*made, shape)
    elif what == "translate":
        cols_indptr, cols, edge_col = made
        window_of = np.repeat(np.arange(shape[0]) // 16, np.diff(indptr))
        back = indptr, cols[cols_indptr[window_of] + edge_col]
    if not (np.array_equal(back[0], indptr) and np.array_equal(back[1], indices)):
        raise AssertionError(f"{what}: the pattern is another one")
    params = {"graph": source, "nnz": int(indices.size), "peak_growth_bytes": grown, "output_bytes": output}
    return Prepared(ours, peer_array.tocsc, f"scipy {scipy.__version__} tocsc", params, given + output)


def growth_in_fresh_process(what: str, graph: str) -> int:
    """:func:`peak_growth` of one conversion in a fresh interpreter, which has no freed memory to reuse."""
    # bitsparse is imported first, and not from the current folder (-P), which may hold its sources without the compiled part.
    code = (
        f"import sys, bitsparse; sys.path.insert(0, {str(ROOT)!r}); "
        f"from benchmarks.cases import host_build; print(host_build.growth({what!r}, {graph!r}))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{what}: the process whose memory is measured failed:\n{done.stderr}")
    return int(done.stdout)


def growth(what: str, graph: str) -> int:
    """Bytes that the conversion adds at its peak, in this process."""
    data, _ = graphs.graph(graph)
    _, call = conversion(what, data.indptr, data.indices, (data.num_nodes, data.num_nodes))
    return peak_growth(call)[0]


def peak_growth(call: Callable[[], tuple[Any, ...]]) -> tuple[int, tuple[Any, ...]]:
    """Bytes of resident memory that a call adds at its peak, its result included, and the result."""
    if not Path("/proc/self/statm").exists():
        raise Unavailable("resident memory is read from /proc")
    start = resident()
    highest, done = [start], threading.Event()

    def watch() -> None:
        while not done.is_set():
            highest[0] = max(highest[0], resident())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = call()
    finally:
        done.set()
        watcher.join()
    return max(highest[0], resident()) - start, result


def resident() -> int:
    """Bytes of resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
