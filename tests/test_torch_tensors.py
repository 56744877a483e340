"""What a PyTorch tensor carries beside its numbers: dtype, gradient, tangent, a trace; and a BitTensor among a module's buffers."""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import bitsparse as bs

torch: Any = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    # PyTorch's own modules use the parts of it that it deprecates.
    pytest.mark.filterwarnings(r"ignore:.torch\.jit\.:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

A = sparse.random_array((6, 5), density=0.5, rng=np.random.default_rng(0), format="csr", dtype=np.float32)
X = torch.from_numpy(np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32))

CALLS: dict[str, Any] = {
    "spmm": lambda x: bs.spmm(A, x),
    "plan_spmm": lambda x: bs.plan_spmm(A, 3)(x),
    "quantize": lambda x: bs.quantize(x, 4).dequantize(),
    "pack_bits": lambda x: bs.pack_bits(x).toarray(),
    "sddmm": lambda x: bs.sddmm(A, x[:1].expand(6, 3), x),
    "quantized_matmul": lambda x: bs.quantized_matmul(x, x.T.contiguous()),
    "QuantCache": lambda x: bs.QuantCache().quantize(x, 4).toarray(),
    "sampled_spmm": lambda x: bs.sampled_spmm(A, x, 2),
    "add": lambda x: bs.add(x, x),
}


@pytest.mark.parametrize("call", CALLS)
def test_tracing_is_refused_with_the_remedy(call: str) -> None:
    with pytest.raises(bs.DTypeError, match=r"PyTorch is tracing .* as a constant; trace the parts before and after"):
        torch.jit.trace(CALLS[call], X)
    from torch.fx.experimental.proxy_tensor import make_fx

    with pytest.raises(bs.DTypeError, match=r"PyTorch is tracing"):
        make_fx(CALLS[call])(X)
    CALLS[call](X)


@pytest.mark.parametrize("call", CALLS)
def test_a_gradient_matters_only_where_one_is_recorded(call: str) -> None:
    leaf = X.clone().requires_grad_()
    for needy in (leaf, leaf * 2):
        with pytest.raises(
            bs.DTypeError, match=r"requires a gradient, which would be lost; pass \w+\.detach\(\), or call .*no_grad"
        ):
            CALLS[call](needy)
        with torch.no_grad(), torch.enable_grad(), pytest.raises(bs.DTypeError, match="requires a gradient"):
            CALLS[call](needy)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.equal(CALLS[call](leaf), CALLS[call](X))
    assert leaf.requires_grad


def test_an_autograd_function_may_compute_with_what_needs_a_gradient() -> None:
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return bs.spmm(A, x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return bs.spmm(sparse.csr_array(A.T), gradient)

    leaf = X.clone().requires_grad_()
    (Sum.apply(leaf) ** 2).sum().backward()
    dense = torch.from_numpy(A.toarray())
    assert torch.allclose(leaf.grad, 2 * dense.T @ (dense @ X), atol=1e-5)


def test_results_are_not_written_behind_the_back_of_autograd() -> None:
    out = torch.zeros(6, 3, requires_grad=True)
    with torch.no_grad(), pytest.raises(bs.DTypeError, match=r"spmm: out requires a gradient"):
        bs.spmm(A, X, out=out)
    pending = torch.zeros(6, 3, dtype=torch.complex64).conj().imag
    assert pending.is_neg()
    with pytest.raises(bs.DTypeError, match=r"spmm: out is a view .*pending"):
        bs.spmm(A, X, out=pending)


def test_a_tangent_is_not_lost() -> None:
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        with pytest.raises(bs.DTypeError, match=r"spmm: x carries a tangent.*x\.detach\(\)"):
            bs.spmm(A, forward_ad.make_dual(X, X))
        assert torch.equal(bs.spmm(A, forward_ad.make_dual(X, X).detach()), bs.spmm(A, X))


TRANSFORMED = {
    "vmap": lambda: torch.func.vmap(lambda x: bs.spmm(A, x))(X[None]),
    "jvp": lambda: torch.func.jvp(lambda x: bs.spmm(A, x), (X,), (X,)),
}


@pytest.mark.parametrize("transform", TRANSFORMED)
def test_transformed_functions_are_refused(transform: str) -> None:
    with pytest.raises(
        bs.DTypeError, match=r"spmm: x (has dtype torch\.float32.*outside of vmap, jvp|carries a tangent)"
    ):
        TRANSFORMED[transform]()


# ---- bfloat16
@pytest.mark.parametrize("call", ["spmm", "plan_spmm", "sampled_spmm", "add"])
def test_bfloat16_comes_back_as_bfloat16(call: str) -> None:
    half = X.to(torch.bfloat16)
    pattern = A.astype(bool)
    found = {
        "spmm": lambda x: bs.spmm(pattern, x),
        "plan_spmm": lambda x: bs.plan_spmm(pattern, 3)(x),
        "sampled_spmm": lambda x: bs.sampled_spmm(pattern, x, 2),
        "add": lambda x: bs.add(x, x),
    }[call]
    result, wide = found(half), found(half.float())
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, wide.to(torch.bfloat16))
    assert torch.equal(found(half.T.contiguous().T), result), "any strides"


def test_bfloat16_is_rounded_at_random_to_bfloat16() -> None:
    half = X.to(torch.bfloat16)
    rounded = bs.stochastic_round(half, seed=3)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded.float(), bs.stochastic_round(half.float(), seed=3))


def test_bfloat16_shares_its_memory() -> None:
    half, out = X.to(torch.bfloat16), torch.zeros(6, 3, dtype=torch.bfloat16)
    assert bs.spmm(A.astype(bool), half, out=out) is out
    assert torch.equal(out, bs.spmm(A.astype(bool), half))


# ---- modules
@pytest.mark.parametrize(
    "held", [bs.BitTensor([[1, 2]], 2), bs.FRDC(np.eye(3, dtype=int)), bs.TCTiledCSR(np.eye(3))], ids=type
)
def test_a_module_refuses_a_bitsparse_array_as_buffer_at_once(held: Any) -> None:
    module = torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match=type(held).__name__):
        module.register_buffer("held", held)
    with pytest.raises(TypeError, match=type(held).__name__):
        module.register_parameter("held", held)
    module.held = held
    assert set(module.state_dict()) == {"weight", "bias"}
    assert module.to(torch.float64).held is held
    assert [*module.buffers()] == []
    assert copy.deepcopy(module).held.shape == held.shape


@pytest.mark.parametrize("operator", ["add", "sub", "mul", "truediv", "lt", "le", "gt", "ge", "eq", "ne", "matmul"])
def test_a_tensor_on_the_left_reaches_the_array_on_the_right(operator: str) -> None:
    import operator as operators

    function = getattr(operators, operator)
    codes = np.arange(1, 10).reshape(3, 3)
    q = bs.BitTensor(codes, 4, axis=-2)
    left = torch.arange(9, dtype=torch.int32).reshape(3, 3)
    result = function(left, q)
    assert isinstance(result, torch.Tensor)
    assert np.array_equal(result.numpy(), function(left.numpy(), codes))


def test_bfloat16_without_its_numpy_type_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(bs.DTypeError, match=r"quantize: x is bfloat16, .* ml_dtypes; install it, or pass x\.float\(\)"):
        bs.quantize(torch.ones(2, 3, dtype=torch.bfloat16), 4)
