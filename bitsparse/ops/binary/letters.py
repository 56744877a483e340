"""BitGNN's three letters (section 3.1.2) for activation, weight or adjacency, and output: F is full precision, B is one bit."""

from __future__ import annotations

import dataclasses
from typing import Any

from bitsparse import _check
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.errors import DTypeError
from bitsparse.ops.finish.epilogue import Epilogue

TRIPLES = tuple(a + b + c for a in "FB" for b in "FB" for c in "FB")


def checked(function: str, variant: Any, found: str, epilogue: Any) -> str:
    """The three letters of `variant`, or by default those of the operands (`found`) and of the epilogue.

    >>> checked("example", None, "BB", None), checked("example", "FBB", "FB", None)
    ('BBF', 'FBB')
    """
    if epilogue is not None:
        _check.instance(function, "epilogue", epilogue, Epilogue, "an Epilogue")
    if variant is None:
        return found + ("B" if epilogue is not None and epilogue.binarize else "F")
    return _check.choice(function, "variant", variant, TRIPLES)


def fitting(function: str, variant: Any, found: str, epilogue: Any) -> str:
    """The :func:`checked` letters; refuses letters that the operands (`found`) do not fit."""
    chosen = checked(function, variant, found, epilogue)
    if chosen[:2] != found:
        raise DTypeError(
            f"{function}: variant {_check.shown(chosen)} does not fit operands {found!r} (B is a one-bit BitTensor, F an array); pass "
            f"{_check.shown(found + chosen[2])}, or pack or unpack an operand"
        )
    return chosen


def activation_letter(function: str, name: str, x: Any) -> str:
    """B for a BitTensor of one bit, bipolar or unsigned, and F for an ordinary array; refuses other BitTensors."""
    if not isinstance(x, BitTensor):
        return "F"
    if x.bits != 1:
        raise DTypeError(
            f"{function}: {name} has {x.bits} bits, but a binary operand has 1; pass pack_bits({name}.dequantize(), "
            f"encoding='bipolar'), or use the functions for several bits (matmul, spmm)"
        )
    if x.encoding == "signed":
        raise DTypeError(
            f"{function}: {name} holds one signed bit (0 or -1), but binary operands are bipolar (-1/+1) or unsigned (0/1); use the "
            f"functions for several bits (matmul, spmm)"
        )
    return "B"


def with_output(function: str, letter: str, epilogue: Epilogue | None) -> Epilogue | None:
    """The epilogue for the output letter: made to binarise for B, unchanged for F. An epilogue that requantises fits neither letter."""
    if epilogue is not None and epilogue.bits is not None:
        raise ValueError(
            f"{function}: the result is full precision or one bit, but the epilogue asks for {epilogue.bits} bits; apply it afterwards, "
            f"Epilogue(bits={epilogue.bits}, ...)({function}(...)), or use binarize=True"
        )
    if letter == "F":
        if epilogue is not None and epilogue.binarize:
            raise ValueError(
                f"{function}: the output letter F asks for numbers, but the epilogue binarises; pass a variant that ends in B"
            )
        return epilogue
    if epilogue is None:
        return Epilogue(binarize=True)
    return epilogue if epilogue.binarize else dataclasses.replace(epilogue, binarize=True)
