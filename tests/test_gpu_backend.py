"""The CUDA backend agrees with the NumPy oracle bit for bit; results are written into poisoned arrays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gpu_products import POISON, accumulator, check, encodings, operand

from bitsparse.backends import reference
from bitsparse.backends.cuda.matmul.wgmma_tilings import WIDTHS, Tiling
from bitsparse.backends.reference.bits import pack as reference_bits
from bitsparse.backends.reference.matmul import matmul as reference_matmul
from bitsparse.errors import KernelError

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kernel", ["planes", "digits"])
@pytest.mark.parametrize("bits", list(itertools.product(range(1, 9), range(1, 9))), ids=lambda b: f"{b[0]}x{b[1]}")
def test_every_pair_of_widths(bits: tuple[int, int], kernel: str) -> None:
    rng = np.random.default_rng(bits)
    for m, n, k in ((1, 1, 1), (7, 127, 129), (129, 65, 1025), (61, 3, 2049)):
        a_encoding, b_encoding = encodings(rng, bits[0]), encodings(rng, bits[1])
        check(
            operand(rng, (m, k), bits[0]),
            operand(rng, (n, k), bits[1]),
            k=k,
            a_bits=bits[0],
            b_bits=bits[1],
            a_encoding=a_encoding,
            b_encoding=b_encoding,
            acc_dtype=np.int32,
            kernel=kernel,
        )


@pytest.mark.parametrize("kernel", ["planes", "digits"])
@pytest.mark.parametrize("bits", [(1, 16), (16, 1), (12, 4), (13, 9), (16, 16), (9, 23), (24, 24), (31, 31), (32, 1)])
def test_wide_operands(bits: tuple[int, int], kernel: str) -> None:
    rng = np.random.default_rng(bits)
    for m, n, k in ((5, 3, 2), (131, 67, 1500)):
        top = k << (bits[0] + bits[1])
        if top >= 2**63:
            k = 1
        check(
            operand(rng, (m, k), bits[0]),
            operand(rng, (n, k), bits[1]),
            k=k,
            a_bits=bits[0],
            b_bits=bits[1],
            a_encoding=encodings(rng, bits[0]),
            b_encoding=encodings(rng, bits[1]),
            acc_dtype=accumulator(k, *bits),
            kernel=kernel,
        )


def test_long_contraction_of_bytes_into_int64() -> None:
    """Sums that exceed 2**32 in one pass of bytes must be right: the contraction axis is cut for them."""
    rng = np.random.default_rng(5)
    k = 70_001
    a, b = (reference_bits.codes_to_words(np.full((2, k), 255, np.uint64), 8, "planes") for _ in range(2))
    b[1] = operand(rng, (1, k), 8)[0]
    check(
        a, b, k=k, a_bits=8, b_bits=8, a_encoding="unsigned", b_encoding="unsigned", acc_dtype=np.int64, kernel="digits"
    )


@pytest.mark.parametrize("b_bits", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.hopper
def test_every_tiling(b_bits: int, wide: bool) -> None:
    """Every tiling of Hopper's kernel must be right; test_gpu_mma.py tests those of the other kernel."""
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import wgmma as gemm

    rng = np.random.default_rng(b_bits)
    for a_bits, m, n, k in ((1, 300, 130, 5000), (2, 513, 264, 2100)):
        a, b = operand(rng, (m, k), a_bits), operand(rng, (n, k), b_bits)
        kind = {"k": k, "a_bits": a_bits, "b_bits": b_bits, "a_encoding": "signed" if a_bits > 1 else "bipolar"}
        kind |= {"b_encoding": "signed", "acc_dtype": np.int64 if wide else np.int32}
        want = reference_matmul.matmul(a, b, **kind)
        device_a, device_b = cupy.asarray(a), cupy.asarray(b)
        for tiling in gemm.tilings(n, b_bits, masked=False, wide=wide, a_planes=a_bits):
            product = cuda_matmul.Product(device_a, n=n, tiling=tiling, **kind)
            out = cupy.full(want.shape, POISON, want.dtype)
            product(device_b, out)
            np.testing.assert_array_equal(cupy.asnumpy(out), want, err_msg=str(tiling))


#: Row tiles that share loads, parts of the contraction axis, and parts of the passes.
_CLUSTERS = ((1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 2, 1), (2, 2, 2), (1, 4, 2), (1, 8, 1))


#: Rows of the table of widths; operands of more than two digits have int64 sums.
_WIDTHS = [("planes", row) for row in WIDTHS] + [("digits", row) for row in WIDTHS if row[2] <= 2]


@pytest.mark.parametrize(
    ("kernel", "row"), _WIDTHS, ids=[f"{kernel}-{'x'.join(map(str, row[:3]))}" for kernel, row in _WIDTHS]
)
@pytest.mark.hopper
def test_tiles_with_kernels_for_their_width(kernel: str, row: tuple[int, int, int, tuple[int, ...]]) -> None:
    """Tiles of every width must be right: ragged rows, columns and contraction axes, shared loads, and sums of parts."""
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul

    groups, mb, qb, widths = row
    rng = np.random.default_rng([groups, qb, len(kernel)])
    planes = qb + (qb == 4)
    bits = (2, planes) if kernel == "planes" else (4, 8 * qb - 2)
    for m, columns, k in ((64 * groups * mb + 37, 2, 8500), (300, 1, 1100)):
        k //= 1 if kernel == "planes" else 8
        for width in widths:
            n = columns * width + (13 if width % 32 else 12)
            a, b = operand(rng, (m, k), bits[0]), operand(rng, (n, k), bits[1])
            kind = {"k": k, "a_bits": bits[0], "b_bits": bits[1], "a_encoding": "unsigned", "b_encoding": "signed"}
            kind["acc_dtype"] = np.int32
            want = reference_matmul.matmul(a, b, **kind)
            device_a, device_b = cupy.asarray(a), cupy.asarray(b)
            for mc, rk, rp in _CLUSTERS:
                tiling = Tiling(mb, 0, qb, mc, rk, rp, groups, width=width)
                splits = rk * rp > 1
                if tiling.right_rows % (8 * mc) or (splits and not tiling.may_split) or rk * rp > 4 * groups:
                    continue
                if rk > -(-k * (8 if kernel == "digits" else 1) // 1024):
                    continue
                product = cuda_matmul.Product(device_a, n=n, kernel=kernel, tiling=tiling, **kind)
                for _ in range(2):
                    out = cupy.full(want.shape, POISON, want.dtype)
                    product(device_b, out)
                    np.testing.assert_array_equal(cupy.asnumpy(out), want, err_msg=str(tiling))


@pytest.mark.parametrize("width", [112, 176, 208, 224, 240])
@pytest.mark.parametrize("kernel", ["planes", "digits"])
@pytest.mark.hopper
def test_sums_of_parts_over_the_ring(kernel: str, width: int) -> None:
    """A tile of any number of parts must be right, whether its sums lie beside the stages or, once all are read, in their place."""
    import cupy

    from bitsparse import jit
    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import wgmma as gemm

    rng = np.random.default_rng([width, len(kernel)])
    step, over = 8 if kernel == "digits" else 1, set()
    # So long that the ring is filled again and again, and with fewer stages in the last part than in the others.
    for batch, m, n, k in (
        ((), 150, width + 13, 45 * 1024 // step + 77),
        ((2,), 100, width - 3, 17 * 1024 // step - 5),
    ):
        bits = (8, 8) if kernel == "digits" else (1, 1)
        a, b = operand(rng, (*batch, m, k), bits[0]), operand(rng, (n, k), bits[1])
        kind = {"k": k, "a_bits": bits[0], "b_bits": bits[1], "a_encoding": "signed" if step == 8 else "bipolar"}
        kind |= {"b_encoding": "signed" if step == 8 else "unsigned", "acc_dtype": np.int32}
        want = reference_matmul.matmul(a, b, **kind)
        device_a, device_b = cupy.asarray(a), cupy.asarray(b)
        for mc, rk in ((1, 1), (1, 2), (2, 2), (1, 4), (2, 4), (1, 8)):
            tiling = Tiling(1, 0, 1, mc, rk, 1, 2, width=width)
            constants = gemm.defines_of(tiling, step, False, jit.capability().shared_bytes)
            over.add((rk, "BS_OVER_RING" in constants))
            product = cuda_matmul.Product(device_a, n=n, kernel=kernel, tiling=tiling, **kind)
            for _ in range(2):
                out = cupy.full(want.shape, POISON, want.dtype)
                product(device_b, out)
                np.testing.assert_array_equal(cupy.asnumpy(out), want, err_msg=str(tiling))
    expected = {112: (), 176: (8,), 208: (4, 8), 224: (2, 4, 8), 240: (2, 4, 8)}[width]
    assert {parts for parts, here in over if here} == set(expected)


@pytest.mark.hopper
def test_tiles_of_their_own_width_store_one_tile_while_multiplying_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that takes tile after tile must be right, with several batches, aligned or not, with and without whole lines."""
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import wgmma as gemm

    monkeypatch.setattr(gemm, "_room_for", lambda _: 2)
    rng = np.random.default_rng(9)
    for tiling in (
        gemm.Tiling(1, 0, 1, width=96),
        gemm.Tiling(1, 0, 1, 2, width=80),
        gemm.Tiling(1, 0, 8, groups=3, width=16),
    ):
        m, n, k, b_bits = 700, 3 * tiling.width + 20, 1300, 8
        a, b = operand(rng, (2, m, k), 1), operand(rng, (n, k), b_bits)
        kind = {"k": k, "a_bits": 1, "b_bits": b_bits, "a_encoding": "bipolar", "b_encoding": "signed"}
        kind["acc_dtype"] = np.int32
        want = reference_matmul.matmul(a, b, **kind)
        product = cuda_matmul.Product(cupy.asarray(a), n=n, tiling=tiling, **kind)
        for shift in (0, 1):
            around = cupy.full(want.size + shift, POISON, want.dtype)
            product(cupy.asarray(b), around[shift:].reshape(want.shape))
            np.testing.assert_array_equal(cupy.asnumpy(around[shift:]).reshape(want.shape), want, err_msg=str(tiling))


@pytest.mark.parametrize("kernel", ["planes", "digits", "mixed", "planes-mma", "digits-mma"])
@pytest.mark.parametrize("columns", [288, 129, 32])
def test_repeated_calls_store_results_wherever_they_begin(kernel: str, columns: int) -> None:
    """A repeated launch must store to an unaligned result, although it reuses the arguments of a call with an aligned one."""
    import cupy

    import bitsparse as bs

    rng = np.random.default_rng(columns)
    left, right = rng.integers(0, 16, (304, 200)), rng.integers(0, 16, (200, columns))
    a, b = bs.pack_bits(left, 4), bs.pack_bits(right, 4, axis=-2)
    want = cupy.asarray((left @ right).astype(np.int32))
    plan = bs.plan_matmul(a.to_device("cuda"), columns, bits=4, kernel=kernel, skip_zero_tiles=False)
    b, size = b.to_device("cuda"), want.size
    around = cupy.empty(size + 16, np.int32)
    for place in (4, 4, 4, 5, 4, 6, 7, 7, 8, 4):
        around.fill(POISON)
        out = around[place : place + size].reshape(want.shape)
        plan(b, out=out)
        assert bool((out == want).all())
        assert bool((around[:place] == POISON).all()) and bool((around[place + size :] == POISON).all())


@pytest.mark.parametrize("bits", [(16, 16), (32, 3), (9, 31), (20, 32)], ids=lambda b: f"{b[0]}x{b[1]}")
@pytest.mark.hopper
def test_every_tiling_of_digits(bits: tuple[int, int]) -> None:
    """Every tiling of Hopper's kernel for int64 must be right: digits side by side, passes combined in registers or memory."""
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import wgmma as gemm

    rng = np.random.default_rng(bits)
    m, n, k = 140, 133, 300 if sum(bits) < 50 else 40
    a, b = operand(rng, (m, k), bits[0]), operand(rng, (n, k), bits[1])
    kind = {"k": k, "a_bits": bits[0], "b_bits": bits[1], "a_encoding": "signed", "b_encoding": "unsigned"}
    kind["acc_dtype"] = np.int64
    want = reference_matmul.matmul(a, b, **kind)
    device_a, device_b = cupy.asarray(a), cupy.asarray(b)
    for tiling in gemm.tilings(n, -(-bits[1] // 8), masked=False, wide=True, a_planes=-(-bits[0] // 8)):
        product = cuda_matmul.Product(device_a, n=n, kernel="digits", tiling=tiling, **kind)
        out = cupy.full(want.shape, POISON, want.dtype)
        product(device_b, out)
        np.testing.assert_array_equal(cupy.asnumpy(out), want, err_msg=str(tiling))


@pytest.mark.parametrize(
    "kinds",
    [
        (8, "signed", 8, "signed"),
        (5, "unsigned", 6, "signed"),
        (8, "signed", 8, "unsigned"),
        (8, "unsigned", 2, "signed"),
        (8, "signed", 13, "signed"),
    ],
    ids=str,
)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.hopper
def test_every_tiling_of_signed_bytes(kinds: tuple[int, str, int, str], wide: bool) -> None:
    """Every tiling must be right for signed and unsigned bytes of either operand, also in several products in a row."""
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import wgmma as gemm

    rng = np.random.default_rng(kinds[0])
    m, n, k = 150, 133, 1100
    a, b = operand(rng, (m, k), kinds[0]), operand(rng, (n, k), kinds[2])
    kind = {"k": k, "a_bits": kinds[0], "b_bits": kinds[2], "a_encoding": kinds[1], "b_encoding": kinds[3]}
    kind["acc_dtype"] = np.int64 if wide else np.int32
    want = reference_matmul.matmul(a, b, **kind)
    device_a, device_b = cupy.asarray(a), cupy.asarray(b)
    for tiling in gemm.tilings(n, -(-kinds[2] // 8), masked=False, wide=wide):
        product = cuda_matmul.Product(device_a, n=n, kernel="digits", tiling=tiling, **kind)
        for _ in range(2):
            out = cupy.full(want.shape, POISON, want.dtype)
            product(device_b, out)
            np.testing.assert_array_equal(cupy.asnumpy(out), want, err_msg=str(tiling))


def test_unpacking_to_bytes() -> None:
    """Unpacking must give digits as bytes in the order that products read, with zeros after the k-th."""
    import cupy

    from bitsparse.backends.cuda.bits import words as packed

    rng = np.random.default_rng(6)
    for shape, bits, encoding in (((33, 3000), 8, "signed"), ((20, 4000), 13, "unsigned"), ((50, 2100), 3, "signed")):
        words, k = cupy.asarray(operand(rng, shape, bits)), shape[-1]
        extend = encoding == "signed"
        whole = packed.digits_of(words, bits, k, False, extend=extend)
        out = cupy.full(whole.shape, 0xA5A5A5A5, whole.dtype)
        packed.digits_of(words, bits, k, False, out, extend=extend, dependent=True)
        np.testing.assert_array_equal(cupy.asnumpy(out), cupy.asnumpy(whole))
        found = cupy.asnumpy(whole).reshape(shape[0], -(-bits // 8), -1, 8).view(np.uint8)
        found = found.reshape(*found.shape[:3], 8, 4).swapaxes(-1, -2).reshape(shape[0], -(-bits // 8), -1)
        values = sum(found[:, d].astype(np.int64) << 8 * d for d in range(found.shape[1]))
        if extend:
            values = values.astype(np.uint8).view(np.int8).astype(np.int64)
        want = reference_bits.unpack(
            cupy.asnumpy(words), shape, bits, axis=-1, layout="planes", encoding=encoding, dtype=np.int64
        )
        np.testing.assert_array_equal(values[:, :k], want)
        assert not values[:, k:].any()


@pytest.mark.parametrize(
    "batches", [((3,), (3,)), ((2, 3), (3,)), ((), (4,)), ((2, 1), (1, 3)), ((0,), (0,)), ((1,), (5,))], ids=str
)
def test_batches(batches: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng = np.random.default_rng(1)
    for a_encoding, b_encoding in (("unsigned", "unsigned"), ("bipolar", "signed")):
        check(
            operand(rng, (*batches[0], 37, 300), 1),
            operand(rng, (*batches[1], 70, 300), 2),
            k=300,
            a_bits=1,
            b_bits=2,
            a_encoding=a_encoding,
            b_encoding=b_encoding,
            acc_dtype=np.int32,
        )


@pytest.mark.parametrize("shape", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0)])
@pytest.mark.parametrize("kernel", ["planes", "digits"])
def test_empty(shape: tuple[int, int, int], kernel: str) -> None:
    m, n, k = shape
    a, b = np.zeros((m, 2, -(-k // 128) * 4), np.uint32), np.zeros((n, 1, -(-k // 128) * 4), np.uint32)
    kind = {"k": k, "a_bits": 2, "b_bits": 1, "a_encoding": "signed", "b_encoding": "bipolar", "kernel": kernel}
    check(a, b, acc_dtype=np.int32, **kind)


@pytest.mark.parametrize("density", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("a_bits", [1, 3])
def test_zero_tiles_are_jumped_over(density: float, a_bits: int) -> None:
    rng = np.random.default_rng(a_bits)
    for batch, m, n, k, encoding in (((), 1000, 70, 40_000, "unsigned"), ((2,), 515, 64, 5000, "signed")):
        a = operand(rng, (*batch, m, k), a_bits, density)
        check(
            a,
            operand(rng, (*batch, n, k), 2),
            k=k,
            a_bits=a_bits,
            b_bits=2,
            a_encoding="bipolar" if a_bits == 1 else encoding,
            b_encoding="signed",
            acc_dtype=np.int32,
            bitmap=reference_bits.tile_bitmap(a, k),
        )


def test_statistics() -> None:
    import cupy

    from bitsparse.backends.cuda.bits import words as packed

    rng = np.random.default_rng(2)
    for shape, bits, encoding in (((9, 5000), 3, "signed"), ((2, 3, 17, 129), 1, "bipolar"), ((4, 0), 2, "unsigned")):
        words, k = operand(rng, shape, bits, 0.5), shape[-1]
        device = cupy.asarray(words)
        np.testing.assert_array_equal(
            cupy.asnumpy(packed.code_sums(device, bits, encoding, k)),
            reference_bits.code_sums(words, bits, encoding, k),
        )
        np.testing.assert_array_equal(cupy.asnumpy(packed.tile_bitmap(device, k)), reference_bits.tile_bitmap(words, k))


@pytest.mark.parametrize("kernel", ["planes", "digits"])
def test_streams_and_graphs(kernel: str) -> None:
    """A prepared product must run on the current stream, and be capturable, as it allocates and compiles nothing."""
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul

    rng = np.random.default_rng(3)
    a, b = operand(rng, (700, 3000), 1), operand(rng, (64, 3000), 4)
    kind = {"k": 3000, "a_bits": 1, "b_bits": 4, "a_encoding": "unsigned", "b_encoding": "signed"}
    want = reference_matmul.matmul(a, b, acc_dtype=np.int32, **kind)
    kind["kernel"] = kernel
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        device_b = cupy.asarray(b)
        product = cuda_matmul.Product(cupy.asarray(a), n=64, **kind)
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


@pytest.mark.parametrize("kernel", ["planes", "digits", "mixed", "planes-mma", "digits-mma"])
@pytest.mark.parametrize(
    "kinds", [(8, "unsigned", 8, "signed"), (3, "signed", 1, "bipolar"), (8, "signed", 8, "signed")]
)
def test_left_operands_that_change(kinds: tuple[int, str, int, str], kernel: str) -> None:
    """Every call, and every replay of a graph, must read the current content of the left operand."""
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul

    rng, (a_bits, a_encoding, b_bits, b_encoding) = np.random.default_rng(4), kinds
    kind = {"k": 300, "a_bits": a_bits, "b_bits": b_bits, "a_encoding": a_encoding, "b_encoding": b_encoding}
    b, lefts = operand(rng, (40, 300), b_bits), [operand(rng, (130, 300), a_bits) for _ in range(3)]
    wants = [reference_matmul.matmul(a, b, acc_dtype=np.int32, **kind) for a in lefts]
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        left, right, out = cupy.asarray(lefts[0]), cupy.asarray(b), cupy.full(wants[0].shape, POISON, np.int32)
        product = cuda_matmul.Product(left, n=40, kernel=kernel, fresh=True, **kind)
        for a, want in zip(lefts[:2], wants, strict=False):
            left.set(a)
            np.testing.assert_array_equal(cupy.asnumpy(product(right, out), stream=stream), want)
        stream.begin_capture()
        product(right, out)
        graph = stream.end_capture()
        left.set(lefts[2])
        out.fill(POISON)
        graph.launch(stream)
        np.testing.assert_array_equal(cupy.asnumpy(out, stream=stream), wants[2])


def test_named_errors() -> None:
    import cupy

    from bitsparse import jit
    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import wgmma as gemm

    a = cupy.zeros((8, 1, 4), np.uint32)
    kind = {"k": 128, "a_bits": 1, "b_bits": 1, "a_encoding": "unsigned", "b_encoding": "unsigned", "n": 8}
    with pytest.raises(
        ValueError, match="kernel must be 'planes', 'digits', 'mixed', 'planes-mma' or 'digits-mma', got 'fast'"
    ):
        cuda_matmul.Product(a, kernel="fast", **kind)
    with pytest.raises(KernelError, match="splits a tile" if jit.capability().has_wgmma else "is not one of kernel"):
        cuda_matmul.Product(a, tiling=gemm.Tiling(2, 1, 1, rk=2), **kind)


def test_the_oracle_is_the_one_meant() -> None:
    assert reference.__name__ == "bitsparse.backends.reference"
