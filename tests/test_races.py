"""A thread that writes into arrays while a function reads them may cause wrong numbers or named errors, but must not end the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The writer puts wild values into the shared arrays and restores them as fast as it can, so that functions often find valid arrays in
# their checks, and damaged ones afterwards.
RACE = """
import sys, threading, time
import numpy as np
from scipy.sparse import csr_array
import bitsparse as bs
from bitsparse.backends.host.sparse import build, entries

what = sys.argv[1]
n, degree = 3000, 40
rng = np.random.default_rng(0)
indices = np.sort(rng.integers(0, n, (n, degree)), axis=1)
indices = np.unique(indices + n * np.arange(n)[:, None]).astype(np.int64)
indptr = np.concatenate([[0], np.cumsum(np.bincount(indices // n, minlength=n))]).astype(np.int32)
indices = (indices % n).astype(np.int32)
A = csr_array((np.ones(indices.size, np.float32), indices, indptr), shape=(n, n))
indptr, indices = A.indptr, A.indices
x = np.ones((n, 96), np.float32)
signs = bs.pack_bits(x - 0.5, axis=-1)
scaled = bs.TCTiledCSR.from_arrays(indptr, indices, (n, n), col_scale=np.ones(n, np.float32))
calls = {
    "spmm": lambda: bs.spmm(A, x),
    "weighted spmm": lambda: bs.spmm(A, x, reduce="max"),
    "scaled spmm": lambda: bs.spmm(scaled, x),
    "sddmm": lambda: bs.sddmm(A, x, x),
    "edge_softmax": lambda: bs.edge_softmax(A, np.ones(A.nnz, np.float32)),
    "attention": lambda: bs.attention(A, x, np.ones(n, np.float32), np.ones(n, np.float32)),
    "sampled_spmm": lambda: bs.sampled_spmm(A, x, 16),
    "bspmm": lambda: bs.bspmm(A, signs, "BBF"),
    "bspmm to bits": lambda: bs.bspmm(A, signs, "BBB"),
    "translate": lambda: build.translate(indptr, indices, (n, n), 16),
    "frdc": lambda: build.frdc(indptr, indices, (n, n)),
    "attention": lambda: bs.attention(A, x, x[:, 0].copy(), x[:, 0].copy()),
    "words": lambda: build.csr_to_words(indptr, indices, (n, n)),
    "transpose": lambda: build.transpose_csr(indptr, indices, (n, n)),
    "transpose entries": lambda: build.transpose_both(indptr, indices, A.data, (n, n)),
    "merge": lambda: entries.merge((indptr, indices, A.data), (indptr, indices, A.data), n, False),
    "merge of many columns": lambda: entries.merge((indptr, indices, A.data), (indptr, indices, A.data), 2**30, True),
    "product": lambda: entries.product((indptr, indices), (indptr, indices), n),
    "product of many columns": lambda: entries.product((indptr, indices), (indptr, indices), 2**24),
    "diagonal": lambda: entries.diagonal(indptr, indices, A.data, (n, n), 0),
}
call = calls[what]
call()
wild = np.array([2**31 - 1, -(2**31), -1, n, 10**8, 2**30], np.int32)
done = False

def write(shared):
    good, random = shared.copy(), np.random.default_rng(1)
    while not done:
        places = random.integers(0, shared.size, 4)
        shared[places] = random.choice(wild, places.size)
        time.sleep(1e-5 * random.integers(0, 100))
        shared[places] = good[places]
        time.sleep(1e-5 * random.integers(0, 100))

sys.setswitchinterval(1e-5)
for shared in (indptr, indices):
    done = False
    writer = threading.Thread(target=write, args=(shared,))
    writer.start()
    end = time.monotonic() + 0.4
    while time.monotonic() < end:
        try:
            call()
        except (ValueError, MemoryError, OverflowError):
            pass
    done = True
    writer.join()
call()
"""


@pytest.mark.parametrize(
    "what",
    [
        "spmm",
        "weighted spmm",
        "scaled spmm",
        "sddmm",
        "edge_softmax",
        "attention",
        "sampled_spmm",
        "bspmm",
        "bspmm to bits",
        "translate",
        "frdc",
        "words",
        "transpose",
        "transpose entries",
        "merge",
        "merge of many columns",
        "product",
        "product of many columns",
        "diagonal",
    ],
)
def test_a_process_survives_writes_while_it_reads(what: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", RACE, what], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr}"
