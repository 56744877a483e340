"""PyTorch's tensors before their memory is shared: what would be lost without a word is refused here.

PyTorch is not imported: it is there when one of its tensors is.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from bitsparse.errors import DTypeError

#: Functions of ``torch._C``: whether torch.jit traces, how many dispatch modes are active, whether a transform of torch.func is, and
#: whether calls are handed to a dispatch key, here PreDispatch, at which torch.export traces.
_QUESTIONS = (
    "_is_tracing",
    "_len_torch_dispatch_stack",
    "_are_functorch_transforms_active",
    "_dispatch_tls_is_dispatch_key_included",
)


def plain_tensor(x: Any, torch: Any, function: str, name: str, *, writable: bool = False) -> Any:
    """A tensor with the memory and values of ``x`` and nothing else: no gradient, no pending conjugation or negation.

    Parameters
    ----------
    x : torch.Tensor
    torch : module
    function, name : str
        Who asks and for which argument; used in messages.
    writable : bool
        Results are to be written into ``x``. PyTorch does not learn of that, so a tensor in a graph of gradients is refused always.

    Raises
    ------
    DTypeError
        ``x`` is sparse, needs a gradient while gradients are recorded, carries a tangent, or belongs to a function being traced.
    """
    if x.layout != torch.strided:
        raise DTypeError(
            f"{function}: {name} is a {x.layout} tensor, and sparse arrays are not densified silently; call its .to_dense() first"
        )
    if _is_traced(torch):
        raise DTypeError(
            f"{function}: {name} is a tensor of a function that PyTorch is tracing (torch.jit.trace, make_fx or torch.export), which would "
            f"keep this call's result as a constant; trace the parts around {function}, and call it between them"
        )
    if x.requires_grad and (writable or torch.is_grad_enabled()):
        remedy = (
            f"pass {name}.detach()" if writable else f"pass {name}.detach(), or call {function} under torch.no_grad()"
        )
        raise DTypeError(f"{function}: {name} requires a gradient, which would be lost; {remedy}")
    if writable and (x.is_conj() or x.is_neg()):
        raise DTypeError(
            f"{function}: {name} is a view whose conjugation or negation is pending, and results would not reach its memory; "
            f"pass an ordinary tensor"
        )
    if _has_tangent(x):
        raise DTypeError(
            f"{function}: {name} carries a tangent (forward_ad), which would be lost; pass {name}.detach()"
        )
    return x.detach().resolve_conj().resolve_neg()


def _is_traced(torch: Any) -> bool:
    if torch.jit.is_tracing():
        return True
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return proxies is not None and proxies.get_proxy_mode() is not None


def _has_tangent(x: Any) -> bool:
    """Whether a tensor is a dual number of forward-mode differentiation."""
    if dual_level() < 0:  # no dual numbers anywhere
        return False
    return sys.modules["torch.autograd.forward_ad"].unpack_dual(x).tangent is not None


def nothing_recorded(torch: Any) -> bool:
    """Whether no call of PyTorch's is traced, transformed or handed to a mode, and no tensor has a tangent; asked in every kept call."""
    questions = _questions(torch)
    if questions is None:
        return False
    is_tracing, modes, transforms, is_included, key = questions
    return not (is_tracing() or modes() or transforms() or is_included(key) or dual_level() >= 0)


@functools.cache
def _questions(torch: Any) -> tuple[Any, ...] | None:
    """The functions of `_QUESTIONS` and the key of the last one. Not public: None where one is missing, and no kept call is used."""
    inside = torch._C
    found = [getattr(inside, name, None) for name in _QUESTIONS]
    key = getattr(inside.DispatchKey, "PreDispatch", None)
    return None if None in found or key is None else (*found, key)


def dual_level() -> int:
    """How deep PyTorch is in forward-mode differentiation; below 0 outside of it."""
    return int(sys.modules["torch.autograd.forward_ad"]._current_level)
