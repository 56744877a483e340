"""The mixed-input product (bytes times packed planes in one launch) agrees with the NumPy oracle bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gpu_products import ENCODINGS, POISON, check, encodings, operand

import bitsparse as bs
from bitsparse.backends.reference.matmul import matmul as reference_matmul
from bitsparse.errors import KernelError

pytestmark = pytest.mark.gpu


def kind_of(k: int, a_bits: int, b_bits: int, **changed: Any) -> dict[str, Any]:
    kind = {"k": k, "a_bits": a_bits, "b_bits": b_bits, "a_encoding": "unsigned", "b_encoding": "unsigned"}
    return kind | {"acc_dtype": np.int32} | changed


def multiplied(a: np.ndarray, b: np.ndarray, tiling: Any, kind: dict[str, Any]) -> None:
    """Check a first call, and a second one that uses what the first prepared; results are written into poisoned memory."""
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul

    want = reference_matmul.matmul(a, b, **kind)
    product = cuda_matmul.Product(
        cupy.asarray(a), n=b.shape[-3], b_batch=b.shape[:-3], kernel="mixed", tiling=tiling, **kind
    )
    for _ in range(2):
        out = cupy.full(want.shape, POISON, want.dtype)
        np.testing.assert_array_equal(cupy.asnumpy(product(cupy.asarray(b), out)), want, err_msg=str(product.tiling))


@pytest.mark.parametrize("bits", list(itertools.product((1, 3, 7, 8), range(1, 9))), ids=lambda b: f"{b[0]}x{b[1]}")
def test_every_pair_of_widths(bits: tuple[int, int]) -> None:
    rng = np.random.default_rng(bits)
    for m, n, k in ((1, 1, 1), (7, 67, 129), (129, 35, 1025)):
        check(
            operand(rng, (m, k), bits[0]),
            operand(rng, (n, k), bits[1]),
            **kind_of(k, *bits, a_encoding=encodings(rng, bits[0]), b_encoding=encodings(rng, bits[1])),
            kernel="mixed",
        )


@pytest.mark.parametrize("encoding", list(itertools.product(ENCODINGS, ENCODINGS)), ids="-".join)
def test_every_pair_of_encodings(encoding: tuple[str, str]) -> None:
    """Every pair of encodings must be right at the widths at which bytes become signed."""
    rng = np.random.default_rng(3)
    widths = [(1,) if one == "bipolar" else (4, 8) for one in encoding]
    for bits in itertools.product(*widths):
        a, b = operand(rng, (37, 300), bits[0]), operand(rng, (21, 300), bits[1])
        check(a, b, **kind_of(300, *bits, a_encoding=encoding[0], b_encoding=encoding[1]), kernel="mixed")


@pytest.mark.parametrize("planes", [1, 3, 8])
def test_every_tiling(planes: int) -> None:
    """Every tiling must be right, with ragged tiles, and with more groups and cluster blocks than the contraction axis has blocks."""
    from bitsparse import jit
    from bitsparse.backends.cuda.matmul import mixed

    rng, chip = np.random.default_rng(planes), jit.capability()
    clusters, seen, fitting = chip.major >= 9, set(), set()
    for m, n, k in ((150, 130, 140), (70, 65, 1300), (33, 9, 3000)):
        a, b = operand(rng, (m, k), 4), operand(rng, (n, k), planes)
        kind = kind_of(k, 4, planes, b_encoding="signed" if planes > 1 else "bipolar")
        for tiling in mixed.tilings(mixed.MixedSizes(m, n, -(-k // 128), planes), clusters=clusters):
            seen.add(tiling)
            if tiling.shared_bytes(planes) > chip.shared_bytes:
                continue
            fitting.add(tiling)
            multiplied(a, b, tiling, kind)
    assert {tiling._replace(parts=1) for tiling in seen} == set(mixed.TILES)
    assert {tiling.parts for tiling in fitting} == (set(mixed.PARTS) if clusters else {1})
    assert chip.shared_bytes < 200_000 or fitting == seen


@pytest.mark.parametrize("planes", [1, 2, 3, 8])
def test_every_tiling_that_keeps_columns(planes: int) -> None:
    """These tilings must be right for ragged strips, rings of one or more strips, threads that only unpack, row and column terms."""
    from bitsparse import jit
    from bitsparse.backends.cuda.matmul import mixed, resident

    chip = jit.capability()
    if not chip.has_wgmma:
        pytest.skip("needs warpgroups")
    rng, depths, helping = np.random.default_rng(planes), set(), set()
    for m, n, k, divided in ((330, 130, 140, 1), (70, 65, 700, 1), (1100, 12, 300, 2), (33, 35, 2300, 1)):
        a, b = operand(rng, (m, k), 4), operand(rng, (n, k), planes)
        encoding = {1: "bipolar", 2: "signed", 3: "unsigned", 8: "signed"}[planes]
        kind = kind_of(k, 4, planes, b_encoding=encoding, a_encoding="signed" if planes == 3 else "unsigned")
        sizes = mixed.MixedSizes(m, n, -(-k // 128), planes, 1, -(-k // 32))
        for columns, groups, staged in itertools.product(resident.COLUMNS, (1, 2, 3, 4), (0, 1)):
            tiling = resident.ResidentTiling(columns, groups, divided, staged)
            depth = tiling.depth(sizes, chip)
            if not depth:
                with pytest.raises(
                    KernelError, match=f"{sizes.blocks} blocks of 128 elements of {columns} columns and of"
                ):
                    multiplied(a, b, tiling, kind)
                continue
            depths.add(depth)
            helping.add(tiling.threads(sizes) > 128 * groups)
            multiplied(a, b, tiling, kind)
    assert depths >= {1, 2} and helping == {False, True}


@pytest.mark.parametrize("batches", [((3,), (3,)), ((2, 3), (3,)), ((), (4,)), ((2, 1), (1, 3)), ((0,), (0,))], ids=str)
def test_batches(batches: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng = np.random.default_rng(1)
    for a_encoding, b_encoding in (("unsigned", "unsigned"), ("bipolar", "signed")):
        a, b = operand(rng, (*batches[0], 37, 300), 1), operand(rng, (*batches[1], 70, 300), 2)
        check(a, b, **kind_of(300, 1, 2, a_encoding=a_encoding, b_encoding=b_encoding), kernel="mixed")


@pytest.mark.parametrize("shape", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0)])
def test_empty(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = np.zeros((m, 2, -(-k // 128) * 4), np.uint32), np.zeros((n, 1, -(-k // 128) * 4), np.uint32)
    check(a, b, **kind_of(k, 2, 1, b_encoding="bipolar"), kernel="mixed")


@pytest.mark.parametrize("shape", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0)])
def test_a_kernel_is_chosen_for_nothing(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = (bs.BitTensor(np.zeros(each, np.int64), 2).to_device("cuda") for each in ((m, k), (k, n)))
    assert np.array_equal(bs.matmul(a, b).get(), np.zeros((m, n), np.int32))


@pytest.mark.parametrize("n", [14, 15, 16])
@pytest.mark.parametrize("shift", [0, 1, 2])
def test_nothing_beside_the_result_is_written(n: int, shift: int) -> None:
    """Nothing but the result must be written, wherever it begins in a larger array, and whatever its length."""
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul

    rng = np.random.default_rng(n)
    m, k = 70, 600
    a, b = operand(rng, (m, k), 1), operand(rng, (n, k), 2)
    kind = kind_of(k, 1, 2)
    around = cupy.full(m * n + 512, POISON, np.int32)
    out = around[256 + shift : 256 + shift + m * n].reshape(m, n)
    cuda_matmul.Product(cupy.asarray(a), n=n, kernel="mixed", **kind)(cupy.asarray(b), out)
    want = np.full(m * n + 512, POISON, np.int32)
    want[256 + shift : 256 + shift + m * n] = reference_matmul.matmul(a, b, **kind).ravel()
    np.testing.assert_array_equal(cupy.asnumpy(around), want)


def test_plain_calls() -> None:
    """One-launch calls must be right when repeated, with results at other addresses, another operand, and another stream."""
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul

    rng = np.random.default_rng(5)
    m, n, k = 70, 20, 600
    a, b = operand(rng, (m, k), 3), [operand(rng, (n, k), 2) for _ in range(2)]
    kind = kind_of(k, 3, 2, b_encoding="signed")
    want = [reference_matmul.matmul(a, one, **kind) for one in b]
    on_device = [cupy.asarray(one) for one in b]
    product = cuda_matmul.Product(cupy.asarray(a), n=n, kernel="mixed", **kind)
    assert product.is_plain
    around = cupy.empty(m * n + 4, np.int32)
    for stream in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)):
        with stream:
            for which, shift in ((0, 0), (0, 0), (0, 0), (0, 1), (0, 2), (1, 0), (1, 3), (0, 0)):
                around.fill(POISON)
                out = around[shift : shift + m * n].reshape(m, n)
                assert product.run_plain(on_device[which], out) is out
                np.testing.assert_array_equal(cupy.asnumpy(out, stream=stream), want[which])
            np.testing.assert_array_equal(cupy.asnumpy(product.run_plain(on_device[1]), stream=stream), want[1])
        stream.synchronize()
    bipolar = cupy.asarray(operand(rng, (m, k), 1))
    moved = cuda_matmul.Product(bipolar, n=n, kernel="mixed", **kind_of(k, 1, 2, a_encoding="bipolar"))
    fresh = cuda_matmul.Product(cupy.asarray(a), n=n, kernel="mixed", fresh=True, **kind)
    assert not moved.is_plain and not fresh.is_plain


def test_largest_sums() -> None:
    """Sums must be right with all 8 bits set, in the longest contraction that int32 holds."""
    k = (2**31 - 1) // 255**2
    a, b = (operand(np.random.default_rng(0), (3, k), 8) | np.uint32(0) for _ in range(2))
    multiplied(a, b, None, kind_of(k, 8, 8))


def test_streams_and_graphs() -> None:
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul

    rng = np.random.default_rng(3)
    a, b = operand(rng, (100, 900), 3), operand(rng, (64, 900), 4)
    kind = kind_of(900, 3, 4)
    want = reference_matmul.matmul(a, b, **kind)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        device_b = cupy.asarray(b)
        product = cuda_matmul.Product(cupy.asarray(a), n=64, kernel="mixed", **kind)
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


def test_named_errors() -> None:
    import cupy

    from bitsparse.backends.cuda.matmul import matmul as cuda_matmul
    from bitsparse.backends.cuda.matmul import mma as gemm_mma

    wide, narrow = cupy.zeros((8, 9, 4), np.uint32), cupy.zeros((8, 1, 4), np.uint32)
    for words, a_bits, b_bits, dtype, message in (
        (wide, 9, 1, np.int32, "the left one has 2 digits, the right one 1 bits"),
        (narrow, 1, 9, np.int32, "the left one has 1 digits, the right one 9 bits"),
        (narrow, 1, 1, np.int64, "and sums are int64; leave the choice to the plan"),
    ):
        with pytest.raises(KernelError, match=message):
            cuda_matmul.Product(words, n=8, kernel="mixed", **kind_of(128, a_bits, b_bits, acc_dtype=dtype))
    with pytest.raises(KernelError, match="is not one of kernel 'mixed' on"):
        cuda_matmul.Product(narrow, n=8, kernel="mixed", tiling=gemm_mma.TILES[0], **kind_of(128, 1, 1))
