"""PTX instructions of single threads: moves, arithmetic, loads, stores, atomics."""

from __future__ import annotations

from emulator.ptx_registers import LANE, WIDTH, ctype
from emulator.source_text import Untranslatable


def mov(a, op, parts, args):
    if args[0].startswith("{"):  # mov.b64 {lo, hi}, x
        lo, hi = a.items(args[0])
        return f"{lo} = (emu_u32){a.ref(args[1])}; {hi} = (emu_u32)({a.ref(args[1])} >> 32);"
    if args[1].startswith("{"):
        lo, hi = a.items(args[1])
        return f"{a.ref(args[0])} = (emu_u64){hi} << 32 | (emu_u32){lo};"
    return f"{a.ref(args[0])} = {a.ref(args[1])};"


def binary(symbol):
    def emit(a, op, parts, args):
        t = ctype(parts[-1])
        d, x, y = (a.ref(v) for v in args)
        return f"{d} = ({t})(({t}){x} {symbol} ({t}){y});"

    return emit


def shift(symbol):
    def emit(a, op, parts, args):
        t = ctype(parts[-1])
        d, x, y = (a.ref(v) for v in args)
        w = WIDTH[parts[-1]]
        over = f"(({t}){x} >> {w - 1})" if symbol == ">>" and parts[-1].startswith("s") else f"({t})0"
        return f"{d} = (emu_u64){y} >= {w} ? {over} : ({t})(({t}){x} {symbol} {y});"

    return emit


def setp(a, op, parts, args):
    t = ctype(parts[-1])
    symbol = {
        "eq": "==",
        "ne": "!=",
        "lt": "<",
        "le": "<=",
        "gt": ">",
        "ge": ">=",
        "lo": "<",
        "ls": "<=",
        "hi": ">",
        "hs": ">=",
    }[parts[1]]
    return f"{a.ref(args[0])} = ({t}){a.ref(args[1])} {symbol} ({t}){a.ref(args[2])};"


def selp(a, op, parts, args):
    d, x, y, p = (a.ref(v) for v in args)
    return f"{d} = {p} ? {x} : {y};"


def lop3(a, op, parts, args):
    d, x, y, z, f = (a.ref(v) for v in args)
    return f"{d} = emu_lop3({x}, {y}, {z}, (int){f});"


def prmt(a, op, parts, args):
    d, x, y, s = (a.ref(v) for v in args)
    return f"{d} = emu_prmt({x}, {y}, {s});"


def dp4a(a, op, parts, args):
    d, x, y, c = (a.ref(v) for v in args)
    kinds = ["signed char" if kind.startswith("s") else "unsigned char" for kind in parts[1:3]]
    terms = " + ".join(f"({kinds[0]})({x} >> {i}) * ({kinds[1]})({y} >> {i})" for i in (0, 8, 16, 24))
    return f"{d} = {c} + {terms};"


def call(template):
    def emit(a, op, parts, args):
        values = [a.address(v) if v.startswith("[") else a.ref(v) for v in args]
        return template.format(*values, d=values[0] if values else "")

    return emit


def shf(a, op, parts, args):
    d, lo, hi, s = (a.ref(v) for v in args)
    return f"{d} = __funnelshift_{parts[1]}{'c' if parts[2] == 'clamp' else ''}({lo}, {hi}, {s});"


def memory(store):
    def emit(a, op, parts, args):
        if parts[1] == "async":
            return None
        vector = next((int(p[1]) for p in parts if p in ("v2", "v4", "v8")), 1)
        kind = parts[-1]
        size = WIDTH[kind] // 8
        where, what = (args[0], args[1]) if store else (args[1], args[0])
        items = a.items(what)
        if len(items) != vector:
            raise Untranslatable(f"{op}: {len(items)} registers for a vector of {vector}")
        total = size * vector
        at = a.address(where)
        shared = any(p.startswith("shared") for p in parts)
        pointer = f"(char *)emu_shared_at({at}, {total}, {total})" if shared else f"(char *){at}"
        t = ctype(kind)
        lines = [f"char *emu_at = {pointer};"]
        if not shared and total > 1:
            lines.append(
                f'if ((emu_u64)emu_at % {total}) emu_fail("{op}: address %p is not a multiple of {total}", emu_at);'
            )
        for i, x in enumerate(items):
            if store:
                lines.append(
                    f"{{ {t} emu_v; __builtin_memcpy(&emu_v, &{x}, {size}); *({t} *)(emu_at + {i * size}) = emu_v; }}"
                )
            elif kind[0] == "f" or size >= 4:
                lines.append(
                    f"{{ {t} emu_v = *({t} *)(emu_at + {i * size}); __builtin_memcpy(&{x}, &emu_v, {size}); }}"
                )
            else:
                lines.append(f"{x} = *({t} *)(emu_at + {i * size});")
        return " ".join(lines)

    return emit


def mapa(a, op, parts, args):
    d, x, r = (a.ref(v) for v in args)
    if "shared::cluster" not in op:
        return f"{d} = (emu_u64)emu_mapa_pointer((const void *){x}, {r});"
    return f"{d} = emu_mapa((emu_u32){x}, {r});"


def cvta(a, op, parts, args):
    d, x = (a.ref(v) for v in args)
    if "shared" not in op:
        return f"{d} = {x};"
    return (
        f"{d} = emu_to_shared((const void *){x});" if "to" in parts else f"{d} = (emu_u64)emu_shared((emu_u32){x}, 0);"
    )


def cvt(a, op, parts, args):
    halves = {"f32.f16": "emu_from_half", "f16x2.f32": "emu_halves", "bf16x2.f32": "emu_bfloats"}
    if name := halves.get(".".join(parts[-2:])):
        return f"{a.ref(args[0])} = {name}({', '.join(a.ref(v) for v in args[1:])});"
    to, source = ctype(parts[-2]), ctype(parts[-1])
    if parts[1:] == ["rna", "tf32", "f32"]:
        return f"{a.ref(args[0])} = emu_tf32({a.ref(args[1])});"
    if parts[1:] in (["rn", "f16x2", "f32"], ["rn", "bf16x2", "f32"]):
        f, upper, lower = f"emu_{parts[2][:-2]}", *(a.ref(v) for v in args[1:])
        return f"{a.ref(args[0])} = {f}({upper}) << 16 | {f}({lower});"
    if parts[1:] == ["f32", "f16"]:
        return f"{a.ref(args[0])} = emu_float_of_f16({a.ref(args[1])});"
    if "f" in parts[-2] or "f" in parts[-1]:
        return None
    return f"{a.ref(args[0])} = ({to})({source}){a.ref(args[1])};"


def mad(a, op, parts, args):
    t = ctype(parts[-1])
    d, x, y, z = (a.ref(v) for v in args)
    if parts[1] == "wide":
        wide = "long long" if parts[-1] == "s32" else "emu_u64"
        return f"{d} = ({wide})({t}){x} * ({t}){y} + {z};"
    if parts[1] != "lo":
        return None
    return f"{d} = ({t})(({t}){x} * ({t}){y} + ({t}){z});"


def mul(a, op, parts, args):
    t = ctype(parts[-1])
    d, x, y = (a.ref(v) for v in args)
    if parts[1] == "wide":
        wide = "long long" if parts[-1] == "s32" else "emu_u64"
        return f"{d} = ({wide})({t}){x} * ({t}){y};"
    if parts[1] == "hi":
        return f"{d} = ({t})(((__int128)({t}){x} * ({t}){y}) >> {WIDTH[parts[-1]]});"
    return f"{d} = ({t})(({t}){x} * ({t}){y});"


def vote(a, op, parts, args):
    d, p, mask = (a.ref(v) for v in args)
    kind = {"ballot": 5, "any": 6, "all": 7}[next(x for x in parts if x in ("ballot", "any", "all"))]
    return f"{d} = emu_collective({kind}, {mask}, {p} != 0, 0, 0);"


def red(a, op, parts, args):
    if not any(p == "global" for p in parts):
        return None
    t, what = ctype(parts[-1]), next(p for p in parts if p in ("add", "or", "and", "xor", "min", "max"))
    at, v = a.address(args[-2]), a.ref(args[-1])
    call = {
        "add": "atomicAdd",
        "or": "atomicOr",
        "and": "atomicAnd",
        "xor": "atomicXor",
        "min": "atomicMin",
        "max": "atomicMax",
    }[what]
    result = f"{a.ref(args[0])} = " if parts[0] == "atom" else ""
    return f"{result}{call}(({t} *){at}, ({t}){v});"


def elect(a, op, parts, args):
    d, p = args[0].split("|")
    predicate = a.ref(p)
    return f"{predicate} = {LANE} == 0;" + ("" if d.strip() == "_" else f" {a.ref(d)} = 0;")


def popc(name):
    return call("{0} = " + name + "({1});")
