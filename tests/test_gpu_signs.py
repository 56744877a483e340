"""Signs of rows on a GPU against the reference, to the bit: planes, means, masks, bytes, and draws whose number is on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import CASES, Case

import bitsparse as bs
from bitsparse import interop
from bitsparse.arrays.inside import with_scale
from bitsparse.backends.reference.binary import signs as reference
from bitsparse.backends.signs import Drop
from bitsparse.ops.binary.signs import SignRows, codes_of_signs
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.quantized.scaled import scaled_codes
from bitsparse.ops.quantized.vjp import product_of_codes, product_over_rows

pytestmark = pytest.mark.gpu


def there(x: Any) -> Any:
    import cupy

    return tuple(map(there, x)) if type(x) is tuple else cupy.asarray(x) if isinstance(x, np.ndarray) else x


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.module == "binary.signs"], ids=lambda case: str(case.id)
)
def test_signs_are_those_of_the_reference(case: Case) -> None:
    from bitsparse.backends.cuda.binary import signs

    args, _ = case.make()
    want = getattr(reference, case.function)(*args)
    got = getattr(signs, case.function)(*map(there, args))
    for one, other in zip(*(part if type(part) is tuple else (part,) for part in (got, want)), strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one.get(), other)


def test_the_number_of_a_stream_may_lie_on_the_gpu() -> None:
    from bitsparse.backends.cuda.binary import signs

    x = np.random.default_rng(0).standard_normal((70, 200)).astype(np.float32)
    want = reference.sign_rows(x, None, Drop(0.5, 3, 2**32 - 1), 1.0, False)
    got = signs.sign_rows(there(x), None, Drop(0.5, 3, there(np.array([2**32 - 1], np.uint32))), 1.0, False)
    np.testing.assert_array_equal(got[0].get(), want[0])


@pytest.mark.parametrize("share", [None, 0.6])
@pytest.mark.parametrize("shape", [(70, 130, 64), (9, 37, 5), (300, 602, 41)])
def test_products_of_signs_and_their_gradients(shape: tuple[int, int, int], share: float | None) -> None:
    """The steps of a layer: its product with scales and bias, and both products of the gradient's codes with signs."""
    m, k, n = shape
    rng = np.random.default_rng(m)
    x, w, bias, g, size = (
        rng.standard_normal(part).astype(np.float32) for part in ((m, k), (k, n), (n,), (m, n), (1, n))
    )
    found = []
    for move, family in ((lambda part: part, interop.NUMPY), (there, interop.CUPY)):
        rows = SignRows.of(move(x), family, None, None if share is None else Drop(share, 3, 5), passes=True)
        bits = bs.pack_bits(move(w), 1, encoding="bipolar", axis=-2)
        signs = bs.BitTensor(bits, bits=8, encoding="signed", axis=-1, layout="rows")
        coding = Coding(8, "stochastic", 1, 2, -1, "rows")
        means, one = rows.signs.scale.reshape(-1), move(np.ones((), np.float32))
        by_weight = scaled_codes("test", "g", move(g), family, coding, "tensor", means).codes
        by_x = scaled_codes("test", "g", move(g) * move(size), family, coding).codes
        found.append(
            [
                product_of_codes("test", rows.signs, with_scale(bits, move(size)), move(bias)),
                product_over_rows("test", codes_of_signs(rows.signs), by_weight),
                product_of_codes("test", by_x, with_scale(signs, one).T),
                rows.passes.toarray(),
            ]
        )
    for want, got in zip(*found, strict=True):
        np.testing.assert_array_equal(got.get(), want)
