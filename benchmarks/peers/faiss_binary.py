"""The distances of FAISS's ``GpuIndexBinaryFlat`` as a kernel of our own: one warp per query over the whole database, a popcount per byte.

Above 256 bits, FAISS (``BinaryDistance.cu``) counts the bits of each byte separately, in 32-bit words that hold one byte each. This kernel
does the same without FAISS's selection: every lane only keeps its least distance, so it takes less time than FAISS would.
"""

from __future__ import annotations

from typing import Any

from bitsparse import jit

__all__ = ["NAME", "least_distances"]

NAME = "FAISS's method for bits, without selection"

_SOURCE = r"""
extern "C" __global__ void least_distances(const unsigned *queries, const unsigned *rows, long long n, int width, int n_queries, int *out)
{
    extern __shared__ unsigned mine[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, query = blockIdx.x * (blockDim.x / 32) + warp;
    if (query >= n_queries)
        return;
    unsigned *q = mine + warp * width;
    for (int i = lane; i < width; i += 32)
        q[i] = queries[(long long)query * width + i];
    __syncwarp();
    int least = 1 << 30;
    for (long long row = lane; row < n; row += 32) {
        int sum = 0;
        for (int i = 0; i < width; i++) {
            const unsigned x = q[i] ^ rows[row * width + i];
#pragma unroll
            for (int byte = 0; byte < 4; byte++)
                sum += __popc(x >> 8 * byte & 255u);
        }
        least = min(least, sum);
    }
    for (int by = 16; by; by >>= 1)
        least = min(least, __shfl_xor_sync(0xffffffffu, least, by));
    if (lane == 0)
        out[query] = least;
}
"""


def least_distances(queries: Any, rows: Any) -> Any:
    """The least Hamming distance of each query, a row of words (Q, W), to the rows of a database (N, W)."""
    cupy = jit.require_cupy("benchmarks")
    kernel = cupy.RawKernel(_SOURCE, "least_distances")
    count, width = queries.shape
    out = cupy.empty(count, "int32")
    arguments = queries, rows, rows.shape[0], width, count, out
    kernel((-(-count // 4),), (128,), arguments, shared_mem=4 * 4 * width)
    return out
