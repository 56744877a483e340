"""PTX instructions for matrix products."""

from __future__ import annotations

import re

from emulator.source_text import Untranslatable

#: The runtime's numbers of the products of floats that are summed in float32, by type, m and k.
FLOATS = {("tf32", 16, 8): 16, ("f16", 16, 16): 17, ("bf16", 16, 16): 18}


def mma(a, op, parts, args):
    shape = re.fullmatch(r"m(\d+)n8k(\d+)", next(p for p in parts if re.fullmatch(r"m\d+n\d+k\d+", p)))
    if not shape or "row" not in parts or "col" not in parts:
        raise Untranslatable(f"{op}: shape or layout")
    m, k = int(shape[1]), int(shape[2])
    types = parts[parts.index("col") + 1 :]
    if types[:4] == ["s32", "b1", "b1", "s32"]:
        if types[-1] != "popc" or types[-2] not in ("and", "xor") or (m, k) not in ((16, 256), (16, 128), (8, 128)):
            raise Untranslatable(f"{op}: no such instruction")
        kind = 0 if types[-2] == "and" else 1
        registers = {(16, 256): (4, 4, 2), (16, 128): (4, 2, 1), (8, 128): (2, 1, 1)}[m, k]
    elif (
        types[0] == "s32"
        and types[1] in ("u8", "s8")
        and types[2] in ("u8", "s8")
        and types[3] == "s32"
        and (m, k) in ((16, 32), (16, 16), (8, 16))
    ):
        kind = 2 | (4 if types[1] == "s8" else 0) | (8 if types[2] == "s8" else 0)
        registers = {(16, 32): (4, 4, 2), (16, 16): (4, 2, 1), (8, 16): (2, 1, 1)}[m, k]
        k *= 8
    elif types[0] == types[3] == "f32" and types[1] == types[2] and (types[1], m, k) in FLOATS:
        kind, registers = FLOATS[types[1], m, k], (4, 4, 2)
        k = 256
    else:
        raise Untranslatable(f"{op}: types {types}")
    d, x, y, c = (a.items(v) for v in args)
    if (len(d), len(x), len(y), len(c)) != (registers[0], registers[1], registers[2], registers[0]):
        raise Untranslatable(f"{op}: wrong number of registers")
    lines = [f"EmuMma emu_m{{{kind}, {m}, 8, {k}, {{}}, {{}}, {{}}, {{}}}};"]
    lines += [f"emu_m.a[{i}] = {v};" for i, v in enumerate(x)]
    lines += [f"emu_m.b[{i}] = {v};" for i, v in enumerate(y)]
    if kind >= 16:
        lines += [f"__builtin_memcpy(&emu_m.c[{i}], &{v}, 4);" for i, v in enumerate(c)]
        lines += ["emu_mma(&emu_m);"] + [f"__builtin_memcpy(&{v}, &emu_m.d[{i}], 4);" for i, v in enumerate(d)]
        return " ".join(lines)
    lines += [f"emu_m.c[{i}] = (int){v};" for i, v in enumerate(c)]
    lines += ["emu_mma(&emu_m);"] + [f"{v} = (emu_u32)emu_m.d[{i}];" for i, v in enumerate(d)]
    return " ".join(lines)


def ldmatrix(a, op, parts, args):
    n = next(int(p[1]) for p in parts if p in ("x1", "x2", "x4"))
    d = a.items(args[0])
    if len(d) != n or "m8n8" not in parts or "b16" not in parts or "aligned" not in parts:
        raise Untranslatable(f"{op}: registers or shape")
    lines = [f"EmuLdmatrix emu_m{{{n}, {int('trans' in parts)}, {a.address(args[1])}, {{}}}}; emu_ldmatrix(&emu_m);"]
    return " ".join(lines + [f"{v} = emu_m.d[{i}];" for i, v in enumerate(d)])


def wgmma(a, op, parts, args):
    if parts[1] == "fence":
        return "emu_wgmma_fence();"
    if parts[1] == "commit_group":
        return "emu_wgmma_commit();"
    if parts[1] == "wait_group":
        return f"emu_wgmma_wait((int){a.ref(args[0])});"
    shape = re.search(r"\.m64n(\d+)k(\d+)\.[sf]32\.(.*)$", op)
    if not shape:
        raise Untranslatable(f"{op}: shape")
    n, k, types = int(shape[1]), int(shape[2]), shape[3]
    if types == "b1.b1.and.popc" and k == 256:
        kind = 0
    elif re.fullmatch(r"[us]8\.[us]8", types) and k == 32:
        kind = 2 | (4 if types[0] == "s" else 0) | (8 if types[3] == "s" else 0)
    elif types == "tf32.tf32" and k == 8 and ".f32." in op:
        kind = FLOATS["tf32", 16, 8]
    else:
        raise Untranslatable(f"{op}: types")
    registers = [int(x.strip()[1:]) for x in args[0].strip()[1:-1].split(",")]
    if len(registers) != n // 2 or any(not a.operands[r][0].startswith("+") for r in registers):
        raise Untranslatable(f"{op}: {len(registers)} accumulators")
    in_registers = args[1].startswith("{")
    if in_registers != (kind == 16):
        raise Untranslatable(f"{op}: A is emulated in registers for TF32, in shared memory for all others")
    pointers = ", ".join(f"(int *)&({a.operands[r][1]})" for r in registers)
    b_tile, keep = (a.ref(x) for x in args[2:4])
    start = f"int *const emu_d[] = {{{pointers}}};"
    if not in_registers:
        return f"{start} emu_wgmma({n}, {kind}, emu_d, {a.ref(args[1])}, {b_tile}, (int)({keep}));"
    if [a.ref(x) for x in args[4:]] != ["1", "1"]:
        raise Untranslatable(f"{op}: factors other than 1")
    words = a.items(args[1])
    if len(words) != 4:
        raise Untranslatable(f"{op}: {len(words)} registers of A")
    # Each lane gets the words of its four: two rows of eight.
    share = (
        "for (int i = 0; i < 4; i++) for (int r = 0; r < 4; r++) emu_a[4 * r + i] = __shfl_sync(~0u, emu_own[r], i, 4);"
    )
    own = f"const emu_u32 emu_own[] = {{{', '.join(words)}}}; emu_u32 emu_a[16]; {share}"
    return f"{start} {own} emu_wgmma_a({n}, {kind}, emu_d, emu_a, {b_tile}, (int)({keep}));"
