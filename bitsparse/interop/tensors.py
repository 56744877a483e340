"""PyTorch's tensors before their memory is shared: what would be lost without a word is refused here.

PyTorch is not imported: it is there when one of its tensors is.
"""

from __future__ import annotations

import sys
from typing import Any

from bitsparse.errors import DTypeError

__all__ = ["plain_tensor"]


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
    forward = sys.modules["torch.autograd.forward_ad"]
    if forward._current_level < 0:  # no dual numbers anywhere
        return False
    return forward.unpack_dual(x).tangent is not None
