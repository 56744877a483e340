"""The product by warps (``mma.sync``), chosen by name so that it runs on every chip, agrees with the NumPy oracle bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gpu_products import POISON, accumulator, check, encodings, operand
from test_gpu_epilogue import behind_product, floats, host, poisoned, random_params, requantised, same

from bitsparse.backends.params import EpilogueParams
from bitsparse.backends.reference.bits import pack as reference_bits
from bitsparse.backends.reference.matmul import matmul as reference_matmul
from bitsparse.errors import KernelError

pytestmark = pytest.mark.gpu

KERNELS = ("planes-mma", "digits-mma")


@pytest.fixture
def two_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small device, on which each block takes several tiles even if there are few."""
    from bitsparse import jit

    small = jit.capability()._replace(multiprocessors=2)
    monkeypatch.setattr(jit, "capability", lambda: small)


def kind_of(k: int, a_bits: int, b_bits: int, dtype: type = np.int32, **changed: Any) -> dict[str, Any]:
    kind = {"k": k, "a_bits": a_bits, "b_bits": b_bits, "a_encoding": "bipolar" if a_bits == 1 else "signed"}
    return kind | {"b_encoding": "signed", "acc_dtype": dtype} | changed


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bits", list(itertools.product(range(1, 9), range(1, 9))), ids=lambda b: f"{b[0]}x{b[1]}")
def test_every_pair_of_widths(bits: tuple[int, int], kernel: str) -> None:
    rng = np.random.default_rng(bits)
    for m, n, k in ((1, 1, 1), (7, 127, 129), (129, 65, 1025), (61, 3, 2049)):
        check(
            operand(rng, (m, k), bits[0]),
            operand(rng, (n, k), bits[1]),
            **kind_of(k, *bits, a_encoding=encodings(rng, bits[0]), b_encoding=encodings(rng, bits[1])),
            kernel=kernel,
        )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bits", [(1, 16), (16, 1), (12, 4), (13, 9), (16, 16), (9, 23), (24, 24), (31, 31), (32, 1)])
def test_wide_operands(bits: tuple[int, int], kernel: str) -> None:
    rng = np.random.default_rng(bits)
    for m, n, k in ((5, 3, 2), (131, 67, 1500)):
        if k << (bits[0] + bits[1]) >= 2**63:
            k = 1
        check(
            operand(rng, (m, k), bits[0]),
            operand(rng, (n, k), bits[1]),
            **kind_of(k, *bits, accumulator(k, *bits), a_encoding=encodings(rng, bits[0])),
            kernel=kernel,
        )


def test_long_contraction_of_bytes_into_int64() -> None:
    """Sums that exceed 2**32 in one pass of bytes must be right: the contraction axis is cut for them."""
    rng = np.random.default_rng(5)
    k = 70_001
    a, b = (reference_bits.codes_to_words(np.full((2, k), 255, np.uint64), 8, "planes") for _ in range(2))
    b[1] = operand(rng, (1, k), 8)[0]
    kind = kind_of(k, 8, 8, np.int64, a_encoding="unsigned", b_encoding="unsigned")
    check(a, b, **kind, kernel="digits-mma")


@pytest.mark.usefixtures("two_multiprocessors")
@pytest.mark.parametrize("b_bits", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("wide", [False, True])
def test_every_tiling(b_bits: int, wide: bool) -> None:
    """Every tiling must be right, also with several tiles per block, and more parts than a pass has contraction blocks."""
    import cupy

    from bitsparse import jit
    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import mma as gemm_mma

    rng = np.random.default_rng(b_bits)
    seen = set()
    for a_bits, m, n, k in ((1, 300, 130, 5000), (2, 513, 264, 2100)):
        a, b = operand(rng, (m, k), a_bits), operand(rng, (n, k), b_bits)
        kind = kind_of(k, a_bits, b_bits, np.int64 if wide else np.int32)
        want = reference_matmul.matmul(a, b, **kind)
        device_a, device_b = cupy.asarray(a), cupy.asarray(b)
        blocks, room = -(-k // 1024), jit.capability().shared_bytes
        found = gemm_mma.tilings(n, b_bits, blocks, wide=wide)
        for tiling in dict.fromkeys(found + gemm_mma.tilings(n, b_bits, blocks, wide=wide, shared_bytes=room)):
            seen.add(tiling[:4])
            product = cuda_matmul.Product(device_a, n=n, tiling=tiling, kernel="planes-mma", **kind)
            out = cupy.full(want.shape, POISON, want.dtype)
            product(device_b, out)
            np.testing.assert_array_equal(cupy.asnumpy(out), want, err_msg=str(tiling))
    assert len(seen) == len(gemm_mma.TILES) - wide


@pytest.mark.parametrize("wide", [False, True])
def test_every_tiling_of_bytes(wide: bool) -> None:
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import mma as gemm_mma

    rng = np.random.default_rng(8)
    m, n, k = 260, 300, 900
    a, b = operand(rng, (m, k), 8), operand(rng, (n, k), 12)
    kind = kind_of(k, 8, 12, np.int64 if wide else np.int32)
    want = reference_matmul.matmul(a, b, **kind)
    for tiling in gemm_mma.tilings(n, 2, -(-k // 128), wide=wide):
        if tiling.rk in (1, 4):
            product = cuda_matmul.Product(cupy.asarray(a), n=n, tiling=tiling, kernel="digits-mma", **kind)
            out = cupy.full(want.shape, POISON, want.dtype)
            np.testing.assert_array_equal(cupy.asnumpy(product(cupy.asarray(b), out)), want, err_msg=str(tiling))


@pytest.mark.parametrize(
    "batches", [((3,), (3,)), ((2, 3), (3,)), ((), (4,)), ((2, 1), (1, 3)), ((0,), (0,)), ((1,), (5,))], ids=str
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_batches(batches: tuple[tuple[int, ...], tuple[int, ...]], kernel: str) -> None:
    rng = np.random.default_rng(1)
    for a_encoding, b_encoding in (("unsigned", "unsigned"), ("bipolar", "signed")):
        a, b = operand(rng, (*batches[0], 37, 300), 1), operand(rng, (*batches[1], 70, 300), 2)
        check(a, b, **kind_of(300, 1, 2, a_encoding=a_encoding, b_encoding=b_encoding), kernel=kernel)


@pytest.mark.usefixtures("two_multiprocessors")
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("wide", [False, True])
def test_batches_of_many_tiles_and_parts(parts: int, wide: bool) -> None:
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import mma as gemm_mma

    rng = np.random.default_rng(4)
    a, b = operand(rng, (2, 1, 150, 3300), 2), operand(rng, (3, 131, 3300), 1)
    kind = kind_of(3300, 2, 1, np.int64 if wide else np.int32, b_encoding="bipolar")
    want = reference_matmul.matmul(a, b, **kind)
    tiling = gemm_mma.TILES[-1]._replace(rk=parts)
    kind |= {"n": 131, "b_batch": (3,), "tiling": tiling, "kernel": "planes-mma"}
    product = cuda_matmul.Product(cupy.asarray(a), **kind)
    out = cupy.full(want.shape, POISON, want.dtype)
    np.testing.assert_array_equal(cupy.asnumpy(product(cupy.asarray(b), out)), want)


@pytest.mark.parametrize("shape", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_empty(shape: tuple[int, int, int], kernel: str) -> None:
    m, n, k = shape
    a, b = np.zeros((m, 2, -(-k // 128) * 4), np.uint32), np.zeros((n, 1, -(-k // 128) * 4), np.uint32)
    check(a, b, **kind_of(k, 2, 1, b_encoding="bipolar"), kernel=kernel)


@pytest.mark.parametrize("density", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("a_bits", [1, 3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_zero_tiles_are_jumped_over(density: float, a_bits: int, kernel: str) -> None:
    rng = np.random.default_rng(a_bits)
    for batch, m, n, k in (((), 520, 70, 20_000), ((2,), 265, 64, 5000)):
        a, b = operand(rng, (*batch, m, k), a_bits, density), operand(rng, (*batch, n, k), 2)
        check(a, b, **kind_of(k, a_bits, 2), kernel=kernel, bitmap=reference_bits.tile_bitmap(a, k))


@pytest.mark.usefixtures("two_multiprocessors")
@pytest.mark.parametrize("wide", [False, True])
def test_zero_tiles_in_every_tiling(wide: bool) -> None:
    """Row tiles whose blocks are all zero must be right among others; a block of threads takes both kinds in turn."""
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import mma as gemm_mma

    rng = np.random.default_rng(6)
    m, n, k = 600, 70, 9000
    a, b = operand(rng, (m, k), 2, 0.02), operand(rng, (n, k), 3)
    a[128:384] = 0
    kind = kind_of(k, 2, 3, np.int64 if wide else np.int32)
    want, bitmap = reference_matmul.matmul(a, b, **kind), cupy.asarray(reference_bits.tile_bitmap(a, k))
    for tiling in gemm_mma.tilings(n, 3, -(-k // 1024), wide=wide):
        product = cuda_matmul.Product(cupy.asarray(a), n=n, tiling=tiling, kernel="planes-mma", bitmap=bitmap, **kind)
        out = cupy.full(want.shape, POISON, want.dtype)
        np.testing.assert_array_equal(cupy.asnumpy(product(cupy.asarray(b), out)), want, err_msg=str(tiling))


@pytest.mark.parametrize("n", [63, 64, 66])
@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("parts", [1, 5])
def test_nothing_beside_the_result_is_written(n: int, shift: int, parts: int) -> None:
    """Nothing but the result must be written, wherever it begins in a larger array, for odd and even lengths."""
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import mma as gemm_mma

    rng = np.random.default_rng(n)
    m, k = 70, 6000
    for dtype in (np.int32, np.int64):
        a, b = operand(rng, (m, k), 1), operand(rng, (n, k), 2)
        kind = kind_of(k, 1, 2, dtype)
        around = cupy.full(m * n + 512, POISON, dtype)
        out = around[256 + shift : 256 + shift + m * n].reshape(m, n)
        tiling = gemm_mma.TILES[2]._replace(rk=parts)
        cuda_matmul.Product(cupy.asarray(a), n=n, tiling=tiling, kernel="planes-mma", **kind)(cupy.asarray(b), out)
        got = cupy.asnumpy(around)
        want = np.full(m * n + 512, POISON, dtype)
        want[256 + shift : 256 + shift + m * n] = reference_matmul.matmul(a, b, **kind).ravel()
        np.testing.assert_array_equal(got, want)


def test_parts_give_the_same_bits_every_time() -> None:
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import mma as gemm_mma

    rng = np.random.default_rng(9)
    a, b = operand(rng, (257, 20_000), 1), operand(rng, (64, 20_000), 4)
    kind = kind_of(20_000, 1, 4)
    want = reference_matmul.matmul(a, b, **kind)
    for rk in (1, 7, 32):
        tiling = gemm_mma.TILES[1]._replace(qb=4, rk=rk)
        product = cuda_matmul.Product(cupy.asarray(a), n=64, tiling=tiling, kernel="planes-mma", **kind)
        out, device_b = cupy.empty(want.shape, np.int32), cupy.asarray(b)
        for _ in range(5):
            out.fill(POISON)
            product(device_b, out)
            np.testing.assert_array_equal(cupy.asnumpy(out), want)


def test_streams_and_graphs() -> None:
    """A captured graph must include the zeroing of a result to which parts are added."""
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import mma as gemm_mma

    rng = np.random.default_rng(3)
    a, b = operand(rng, (700, 3000), 1), operand(rng, (64, 3000), 4)
    kind = kind_of(3000, 1, 4, a_encoding="unsigned")
    want = reference_matmul.matmul(a, b, **kind)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        device_b = cupy.asarray(b)
        tiling = gemm_mma.TILES[3]._replace(rk=3)
        product = cuda_matmul.Product(cupy.asarray(a), n=64, kernel="planes-mma", tiling=tiling, **kind)
        out = cupy.full(want.shape, POISON, np.int32)
        product(device_b, out)
        stream.begin_capture()
        for _ in range(3):
            product(device_b, out)
        graph = stream.end_capture()
        for _ in range(2):
            out.fill(POISON)
            graph.launch(stream)
            np.testing.assert_array_equal(cupy.asnumpy(out, stream=stream), want)


def test_dispatch_and_named_errors() -> None:
    import cupy

    from bitsparse import jit
    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import mma as gemm_mma
    from bitsparse.backends.cuda.matmul import wgmma as gemm

    a = cupy.zeros((8, 1, 4), np.uint32)
    kind = kind_of(128, 1, 1, b_encoding="bipolar") | {"n": 8}
    best = gemm.Tiling if jit.capability().has_wgmma else gemm_mma.MmaTiling
    for kernel, tiling in (("planes", best), ("digits", best), *((name, gemm_mma.MmaTiling) for name in KERNELS)):
        assert type(cuda_matmul.Product(a, kernel=kernel, **kind).tiling) is tiling
    with pytest.raises(KernelError, match="is not one of kernel 'planes-mma' on"):
        cuda_matmul.Product(a, kernel="planes-mma", tiling=gemm.Tiling(1, 1, 1), **kind)
    tiling = gemm_mma.TILES[0]._replace(qb=2)
    with pytest.raises(KernelError, match="does not go with an int64 result"):
        cuda_matmul.Product(a, kernel="planes-mma", tiling=tiling, **kind | {"acc_dtype": np.int64})


@pytest.mark.usefixtures("two_multiprocessors")
@pytest.mark.parametrize("b_bits", [1, 2, 12])
@pytest.mark.parametrize("kernel", KERNELS)
def test_epilogues_in_every_tiling(b_bits: int, kernel: str) -> None:
    """Epilogues must be right with several tiles per block, which refills its ring for each, ragged edges, and zero tiles."""
    import cupy

    from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import mma as gemm_mma

    rng = np.random.default_rng(b_bits)
    planes = b_bits if kernel == "planes-mma" else -(-b_bits // 8)
    for m, n, k in ((300, 70, 2200), (135, 264, 1100)):
        a, b = operand(rng, (m, k), 2, 0.1), operand(rng, (n, k), b_bits)
        kind = kind_of(k, 2, b_bits)
        sums, bitmap = reference_matmul.matmul(a, b, **kind), cupy.asarray(reference_bits.tile_bitmap(a, k))
        chains = [EpilogueParams(row_scale=floats(rng, (m,)), bias=floats(rng, (n,)), activation="leaky_relu")]
        chains += [requantised((m, n), 4, axis) for axis in (-1, -2)] + [random_params(rng, (m, n)) for _ in range(3)]
        device_a, device_b = cupy.asarray(a), cupy.asarray(b)
        found = gemm_mma.tilings(n, planes, 4, wide=False, fused=True)
        assert {t[:4] for t in found} == {t[:4] for t in gemm_mma.TILES[1:]}
        for tiling, params in itertools.product(found, chains):
            want, chain = host(sums, params), DeviceEpilogue(params, (m, n))
            product = cuda_matmul.Product(
                device_a, n=n, tiling=tiling, kernel=kernel, epilogue=chain, bitmap=bitmap, **kind
            )
            assert product.fused
            out = poisoned(want.shape, want.dtype)
            product(device_b, out)
            same(cupy.asnumpy(out), want, f"{tiling} {params}")


@pytest.mark.parametrize("seed", range(12))
def test_any_epilogue(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 200)), int(rng.integers(1, 200)))
    batch: tuple[int, ...] = ((), (3,), (2, 2))[seed % 3]
    params = random_params(rng, (*batch, *shape))
    for kernel in KERNELS:
        widths = {"a_bits": int(rng.integers(1, 4)), "b_bits": int(rng.integers(1, 5))}
        behind_product(rng, (*batch, *shape), int(rng.integers(1, 400)), params, kernel=kernel, **widths)


@pytest.mark.parametrize("kernel", KERNELS)
def test_epilogues_of_wide_sums_and_of_none(kernel: str) -> None:
    """Sums of 64 bits and empty sums must be right; they go through a separate kernel."""
    rng = np.random.default_rng(7)
    for axis in (-1, -2):
        params = requantised((45, 70), 7, axis)._replace(divisor=np.float32(1e12))
        behind_product(rng, (45, 70), 130, params, a_bits=16, b_bits=20, acc_dtype=np.int64, kernel=kernel)
        behind_product(rng, (5, 7), 0, requantised((5, 7), 3, axis), kernel=kernel)
