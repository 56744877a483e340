"""Translates inline assembly to C++: each asm statement becomes a block with one call of the emulator's runtime for each instruction."""

from __future__ import annotations

import ast
import re

from emulator.ptx_registers import SPECIAL
from emulator.ptx_table import TABLE
from emulator.source_text import Untranslatable, matching, split, strip_markers

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def _asm_sections(body: str) -> tuple[str, list[str], list[str]]:
    """The template, the output operands and the input operands of an asm statement, given the text in its parentheses."""
    # `::` separates an empty list of outputs
    parts = split(body, ":")
    template = "".join(ast.literal_eval(s) for s in _STRING.findall(parts[0]))
    outs = [p for p in split(parts[1], ",") if p.strip()] if len(parts) > 1 else []
    ins = [p for p in split(parts[2], ",") if p.strip()] if len(parts) > 2 else []
    return template, outs, ins


def _operand(text: str) -> tuple[str, str]:
    m = re.match(r'\s*(?:\[\w+\]\s*)?"([^"]*)"\s*\((.*)\)\s*$', text, re.DOTALL)
    if not m:
        raise Untranslatable(f"asm operand {text.strip()!r}")
    return m[1], m[2].strip()


_TYPES = {"r": "emu_u32", "l": "emu_u64", "h": "unsigned short", "f": "float", "d": "double"}


class _Asm:
    """One asm statement."""

    def __init__(self, template: str, outs: list[str], ins: list[str], index: int) -> None:
        self.operands = [_operand(t) for t in (*outs, *ins)]
        self.n_outs, self.template = len(outs), template
        self.names: dict[str, str] = {}
        self.index = index

    def kind(self, i: int) -> str:
        return self.operands[i][0].lstrip("=+&")

    def code(self) -> str:
        lines = []
        body = re.sub(r"//[^\n]*|/\*.*?\*/", "", self.template)
        statements = [s.strip() for s in re.split(r";", body)]
        statements = [
            s for s in (re.sub(r"^[{}\s]+(?=[.@a-z]|$)", "", s).strip() for s in statements) if s and s != "}"
        ]
        statements = [s[:-1].strip() if s.endswith("}") and s.count("}") > s.count("{") else s for s in statements]
        by_address = any("wgmma.mma_async" in s for s in statements)
        for i, (constraint, expr) in enumerate(self.operands):
            kind = self.kind(i)
            if kind == "n":
                lines.append(f"const long long emu_r{i} = (long long)({expr});")
                continue
            if kind not in _TYPES:
                raise Untranslatable(f"asm constraint {constraint!r}")
            if i < self.n_outs:
                if not (by_address and constraint.startswith("+")):
                    start = f"{self._in(kind)}({expr})" if constraint.startswith("+") else "0"
                    lines.append(f"{_TYPES[kind]} emu_r{i} = {start};")
            else:
                lines.append(f"{_TYPES[kind]} emu_r{i} = {self._in(kind)}({expr});")
        for s in statements:
            lines.append(self._statement(s))
        for i in range(self.n_outs):
            constraint, expr = self.operands[i]
            kind = self.kind(i)
            if by_address and constraint.startswith("+"):
                continue
            if not statements:
                continue
            to = {"r": "emu_out32", "l": "emu_out64"}.get(kind)
            lines.append(f"{to}({expr}, emu_r{i});" if to else f"{expr} = emu_r{i};")
        return "do { " + " ".join(x for x in lines if x) + " } while (0)" if statements else "do {} while (0)"

    @staticmethod
    def _in(kind: str) -> str:
        return {"r": "emu_in32", "l": "emu_in64"}.get(kind, "")

    # ---- operands
    def ref(self, text: str) -> str:
        """The C++ expression for a register, a special register or a number."""
        text = text.strip()
        if m := re.fullmatch(r"%(\d+)", text):
            return f"emu_r{m[1]}"
        text = text.replace("%%", "%")
        if text in SPECIAL:
            return SPECIAL[text]
        if text in self.names:
            return self.names[text]
        if text.startswith("!") and text[1:] in self.names:
            return f"!{self.names[text[1:]]}"
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)[uU]?", text):
            return text
        if m := re.fullmatch(r"(.+)\+\s*(\d+)", text):
            return f"({self.ref(m[1])} + {m[2]})"
        raise Untranslatable(f"PTX operand {text!r} in {self.template!r}")

    def items(self, text: str) -> list[str]:
        """The registers of ``{a, b}``, or a single register without braces."""
        text = text.strip()
        return [self.ref(x) for x in text[1:-1].split(",")] if text.startswith("{") else [self.ref(text)]

    def address(self, text: str) -> str:
        text = text.strip()
        if not (text.startswith("[") and text.endswith("]")):
            raise Untranslatable(f"PTX address {text!r}")
        return self.ref(text[1:-1])

    # ---- statements
    def _statement(self, s: str) -> str:
        if s.startswith(".reg"):
            m = re.match(r"\.reg\s+\.(\w+)\s+(.*)", s, re.DOTALL)
            assert m
            kind = {
                "pred": "bool",
                "b64": "emu_u64",
                "u64": "emu_u64",
                "s64": "emu_u64",
                "f32": "float",
                "f64": "double",
                "b16": "unsigned short",
                "u16": "unsigned short",
            }.get(m[1], "emu_u32")
            names = [x.strip() for x in m[2].split(",")]
            for x in names:
                self.names[x] = "emu_p_" + re.sub(r"\W", "_", x)
            return " ".join(f"{kind} {self.names[x]} = 0;" for x in names)
        guard = ""
        if m := re.match(r"@(!?)(%?\w+)\s+(.*)", s, re.DOTALL):
            guard = f"if ({m[1]}{self.ref(m[2])}) "
            s = m[3]
        m = re.match(r"([\w.:]+)\s*(.*)", s, re.DOTALL)
        if not m:
            raise Untranslatable(f"PTX {s!r}")
        op, args = m[1], [x.strip() for x in split(m[2], ",")] if m[2].strip() else []
        return guard + "{ " + self.instruction(op, args) + " }"

    def instruction(self, op: str, args: list[str]) -> str:
        parts = op.split(".")
        for prefix, method in TABLE:
            if op == prefix or op.startswith(prefix + ".") or (prefix.endswith(".") and op.startswith(prefix)):
                try:
                    found = method(self, op, parts, args)
                except Untranslatable:
                    raise
                except Exception as error:  # a form that the method does not expect
                    raise Untranslatable(f"PTX instruction {op!r} {args} in {self.template!r} ({error!r})") from error
                if found is not None:
                    return str(found)
        raise Untranslatable(
            f"PTX instruction {op!r} is not known to the emulator (from {self.template!r}); add it to ptx_table.py"
        )


def translate_asm(text: str) -> str:
    out, at, index = [], 0, 0
    pattern = re.compile(r"\b(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(")
    while m := pattern.search(text, at):
        close = matching(text, m.end() - 1)
        body = text[m.end() : close]
        lines = body.count("\n")
        template, outs, ins = _asm_sections(strip_markers(body))
        out.append(text[at : m.start()])
        out.append(_Asm(template, outs, ins, index).code() + "\n" * lines)
        index += 1
        at = close + 1
    out.append(text[at:])
    return "".join(out)
