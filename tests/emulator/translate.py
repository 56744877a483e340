"""Translates preprocessed CUDA C++ to C++ for g++: shared memory, kernels, inline PTX."""

from __future__ import annotations

import re

from emulator.ptx_statement import translate_asm
from emulator.source_text import Untranslatable, matching, split

_ATTRIBUTES = r"(?:(?:__attribute__\s*\(\([^()]*(?:\([^()]*\))?[^()]*\)\)|volatile)\s*)*"
_TYPE = r"(?:const\s+)?(?:unsigned\s+|signed\s+)?[\w:]+(?:\s+long|\s+int|\s+char|\s+short)*"
_DYNAMIC = re.compile(
    rf"extern\s+({_ATTRIBUTES})__shared__\s+({_ATTRIBUTES})({_TYPE})\s+({_ATTRIBUTES})(\w+)\s*\[\s*\]\s*;"
)
_KERNEL = re.compile(r"__global__\s+(?P<x>[^;{}=]*?\b(?P<name>\w+)\s*)\((?P<params>[^(){};]*)\)\s*(?=\{)", re.DOTALL)
_BOUNDS = re.compile(r"__launch_bounds__\s*\(")


def translate(text: str) -> str:
    """The translation of a preprocessed file."""
    align = [16]

    def dynamic(m: re.Match[str]) -> str:
        kind, name = m[3], m[5]
        found = [int(x) for x in re.findall(r"aligned\((\d+)\)", m[1] + m[2] + m[4])]
        align.append(max(found, default=16))
        before = re.sub(r'"(?:[^"\\\n]|\\.)*"', "", text[: m.start()])
        if before.count("{") == before.count("}"):
            return f"\n#define {name} (({kind} *)emu_dynamic_shared())\n"
        return f"{kind} *const {name} = ({kind} *)emu_dynamic_shared();"

    text = _DYNAMIC.sub(dynamic, text)
    if left := re.search(r'extern\b[^;{}"]*__shared__[^;]*;', text):
        raise Untranslatable("a declaration of dynamic shared memory: " + left[0])
    text = re.sub(r"\b(?:static\s+)?__shared__\b", "static EMU_SECTION", text)
    text = text.replace("static EMU_SECTION", 'static __attribute__((section("emu_shared")))')
    kernels = []
    # launch bounds are replaced before kernels are searched for
    while m := _BOUNDS.search(text):
        close = matching(text, m.end() - 1)
        first = split(text[m.end() : close], ",")[0].strip()
        text = text[: m.start()] + f"EMU_BOUND_{len(kernels)}_ " + text[close + 1 :]
        kernels.append(first)
    trampolines = []

    def kernel(m: re.Match[str]) -> str:
        head, name, params = m["x"], m["name"], " ".join(m["params"].split())
        bound = "1024"
        if b := re.search(r"EMU_BOUND_(\d+)_ ", head):
            bound = kernels[int(b[1])]
            head = head.replace(b[0], "")
        if "," in params:
            raise Untranslatable(f"kernel {name}: {params}: the emulator takes kernels of one structure")
        if not params or params == "void":
            call, size, taken = f"{name}();", "0", ""
        else:
            p = re.fullmatch(r"(?:(const)\s+)?(.*?)\s*\b(\w+)", params)
            if not p:
                raise Untranslatable(f"kernel {name}: parameter {params!r}")
            kind = p[2].replace("const", "").strip() if p[1] or "const" in p[2] else p[2].strip()
            const = bool(p[1]) or "const" in p[2].split()
            taken = f"const {kind} &{p[3]}" if const and "*" not in kind else f"{kind} {p[3]}"
            call, size = f"{name}(*(const {kind} *)emu_p);", f"sizeof({kind})"
        trampolines.append(
            f'extern "C" void emu_entry_{name}(const void *emu_p) {{ {call} }}\n'
            f'extern "C" unsigned emu_size_{name}() {{ return {size}; }}\nextern "C" unsigned emu_bound_{name}() {{ return {bound}; }}\n'
        )
        return f"__attribute__((noinline)) {head}({taken}) "

    text = _KERNEL.sub(kernel, text)
    if "__global__" in text:
        left = re.search(r"__global__[^;{]*[;{]", text)
        if left and left[0].endswith("{"):
            raise Untranslatable("a kernel: " + left[0])
        text = text.replace("__global__", "")
    text = re.sub(r"EMU_BOUND_\d+_ ", "", text)
    text = translate_asm(text)
    return (
        text
        + '\nextern "C" { extern char __start_emu_shared[] __attribute__((weak, visibility("hidden")));'
        + ' extern char __stop_emu_shared[] __attribute__((weak, visibility("hidden"))); }\n'
        + 'extern "C" void emu_shared_range(void **a, void **b) { *a = __start_emu_shared; *b = __stop_emu_shared; }\n'
        + f'extern "C" unsigned emu_dynamic_align() {{ return {max(align)}; }}\n'
        + "".join(trampolines)
    )
