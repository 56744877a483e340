"""Signs of rows on a GPU against the reference, to the bit: planes, means, masks, bytes, and draws whose number is on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import CASES, Case

from bitsparse.backends.params import Drop
from bitsparse.backends.reference.binary import signs as reference

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
