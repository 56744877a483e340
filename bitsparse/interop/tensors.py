"""Checks of PyTorch tensors before their memory is shared: gradients, traces or tangents must not be lost silently.

PyTorch is not imported here, since a caller who passes a tensor has imported it.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from bitsparse.errors import DTypeError

#: Functions of ``torch._C`` that tell whether torch.jit is tracing, how many dispatch modes are active, whether a transform of torch.func
#: is active, and whether calls go through a dispatch key (PreDispatch, at which torch.export traces).
_QUESTIONS = (
    "_is_tracing",
    "_len_torch_dispatch_stack",
    "_are_functorch_transforms_active",
    "_dispatch_tls_is_dispatch_key_included",
)


def plain_tensor(x: Any, torch: Any, function: str, name: str, *, writable: bool = False) -> Any:
    """A tensor with the memory and values of ``x`` but without a gradient and without a pending conjugation or negation.

    Parameters
    ----------
    x : torch.Tensor
    torch : module
    function, name : str
        The calling function and its argument, for messages.
    writable : bool
        Whether results will be written into ``x``. PyTorch would not notice, so a tensor that requires a gradient is then always refused.

    Raises
    ------
    DTypeError
        ``x`` is sparse, requires a gradient while gradients are recorded, carries a tangent, or belongs to a function that is being traced.
    """
    if x.layout != torch.strided:
        raise DTypeError(
            f"{function}: {name} is a {x.layout} tensor, and sparse arrays are not densified silently; call its .to_dense() first"
        )
    if _is_traced(torch):
        raise DTypeError(
            f"{function}: {name} belongs to a function that PyTorch is tracing (torch.jit.trace, make_fx or torch.export), and the trace "
            f"would keep this call's result as a constant; trace the parts before and after {function} separately, and call it in between"
        )
    if x.requires_grad and (writable or torch.is_grad_enabled()):
        remedy = (
            f"pass {name}.detach()" if writable else f"pass {name}.detach(), or call {function} under torch.no_grad()"
        )
        raise DTypeError(f"{function}: {name} requires a gradient, which would be lost; {remedy}")
    if writable and (x.is_conj() or x.is_neg()):
        raise DTypeError(
            f"{function}: {name} is a view with a pending conjugation or negation, so results cannot be written to its memory; "
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
    """Whether a tensor carries a tangent, that is, is a dual number of forward-mode differentiation."""
    if dual_level() < 0:  # no dual numbers anywhere
        return False
    return sys.modules["torch.autograd.forward_ad"].unpack_dual(x).tangent is not None


def nothing_recorded(torch: Any) -> bool:
    """Whether PyTorch is not tracing, no transform or dispatch mode is active, and no tensor has a tangent; prepared calls check this."""
    questions = _questions(torch)
    if questions is None:
        return False
    is_tracing, modes, transforms, is_included, key = questions
    return not (is_tracing() or modes() or transforms() or is_included(key) or dual_level() >= 0)


@functools.cache
def _questions(torch: Any) -> tuple[Any, ...] | None:
    """The functions of `_QUESTIONS`, and the key for the last one.

    They are not public. If a release of PyTorch lacks one, the result is None, and prepared calls are not used for tensors.
    """
    inside = torch._C
    found = [getattr(inside, name, None) for name in _QUESTIONS]
    key = getattr(inside.DispatchKey, "PreDispatch", None)
    return None if None in found or key is None else (*found, key)


def dual_level() -> int:
    """The nesting level of PyTorch's forward-mode differentiation; negative if none is active."""
    return int(sys.modules["torch.autograd.forward_ad"]._current_level)
