"""PTX instructions for asynchronous copies and for barriers."""

from __future__ import annotations

import re

from emulator.ptx_registers import WIDTH
from emulator.source_text import Untranslatable, split


def cp_async(a, op, parts, args):
    # cp.async.ca.shared.global [dst], [src], size{, src-size}{, policy}
    if parts[2] in ("commit_group",):
        return "emu_cp_async_commit();"
    if parts[2] == "wait_group":
        return f"emu_cp_async_wait((int){a.ref(args[0])});"
    if parts[2] == "wait_all":
        return "emu_cp_async_wait_all();"
    if parts[2] not in ("ca", "cg"):
        return None
    rest = args[2:]
    if "cache_hint" in op:
        rest = rest[:-1]
    size = a.ref(rest[0])
    take = a.ref(rest[1]) if len(rest) > 1 else size
    check = 'if (emu_n != 16) emu_fail("cp.async.cg takes 16 bytes");' if parts[2] == "cg" else ""
    return f"const emu_u32 emu_n = {size}; {check} emu_cp_async({a.address(args[0])}, (const void *){a.address(args[1])}, emu_n, {take});"


def tensor_operand(a, text):
    """``[map, {c0, c1}]``: the map and the coordinates."""
    inner = text.strip()[1:-1]
    name, coords = split(inner, ",")[0], inner[inner.index("{") :]
    return a.ref(name), a.items(coords)


def coordinates(items):
    return "const int emu_c[] = {" + ", ".join(f"(int){x}" for x in items) + "};"


def bulk(a, op, parts, args):
    if "commit_group" in parts:
        return "emu_bulk_commit();"
    if "wait_group" in parts:
        return f"emu_bulk_wait((int){a.ref(args[0])});"
    if "prefetch" in parts:
        return ""
    if "tensor" in parts:
        rank = int(next(p for p in parts if re.fullmatch(r"\dd", p))[0])
        if (op.startswith("cp.async.bulk.tensor") and ".shared::cluster.global" in op) or ".shared::cta.global" in op:
            if "mbarrier::complete_tx::bytes" not in op:
                raise Untranslatable(f"{op}: a load needs .mbarrier::complete_tx::bytes")
            where, coords = tensor_operand(a, args[1])
            multicast = "multicast::cluster" in op
            mask = a.ref(args[3]) if multicast else "0"
            if len(coords) != rank:
                raise Untranslatable(f"{op}: {len(coords)} coordinates")
            return (
                f"{coordinates(coords)} emu_tma_load({a.address(args[0])}, (const void *){where}, {a.address(args[2])}, {rank}, emu_c, "
                f"{int(multicast)}, {mask});"
            )
        if ".global.shared::cta" in op:
            where, coords = tensor_operand(a, args[0])
            if len(coords) != rank:
                raise Untranslatable(f"{op}: {len(coords)} coordinates")
            return (
                f"{coordinates(coords)} emu_tma_store((const void *){where}, {a.address(args[1])}, {rank}, emu_c, "
                f"{int(op.startswith('cp.reduce'))});"
            )
        return None
    if op.startswith("cp.async.bulk.shared"):
        return f"emu_bulk_load({a.address(args[0])}, (const void *){a.address(args[1])}, {a.ref(args[2])}, {a.address(args[3])});"
    if op.startswith("cp.async.bulk.global.shared"):
        return f"emu_bulk_store((void *){a.address(args[0])}, {a.address(args[1])}, {a.ref(args[2])});"
    return None


def mbarrier(a, op, parts, args):
    what = parts[1]
    if what == "init":
        return f"emu_bar_init({a.address(args[0])}, {a.ref(args[1])});"
    if what == "inval":
        return f"emu_bar_inval({a.address(args[0])});"
    if what == "expect_tx":
        return f"emu_bar_expect_tx({a.address(args[0])}, {a.ref(args[1])}, 0);"
    if what == "complete_tx":
        return f"emu_bar_complete_tx({a.address(args[0])}, {a.ref(args[1])});"
    if what == "arrive":
        if args[0] == "_":
            args = args[1:]
        elif not args[0].startswith("["):
            raise Untranslatable(f"{op}: a state is not emulated, use _")
        if "expect_tx" in parts:
            return f"emu_bar_expect_tx({a.address(args[0])}, {a.ref(args[1])}, 1);"
        count = a.ref(args[1]) if len(args) > 1 else "1"
        return f"emu_bar_arrive({a.address(args[0])}, {count});"
    if what in ("try_wait", "test_wait"):
        if "parity" not in parts:
            raise Untranslatable(f"{op}: only the parity form is emulated")
        return (
            f"{a.ref(args[0])} = emu_bar_test({a.address(args[1])}, {a.ref(args[2])}, {int(what == 'try_wait')}) != 0;"
        )
    return None


def st_async(a, op, parts, args):
    vector = next((int(p[1]) for p in parts if p in ("v2", "v4")), 1)
    if WIDTH[parts[-1]] != 32:
        raise Untranslatable(f"{op}: only 32-bit words")
    items = a.items(args[1])
    if len(items) != vector:
        raise Untranslatable(f"{op}: {len(items)} registers for a vector of {vector}")
    return f"const emu_u32 emu_v[] = {{{', '.join(items)}}}; emu_st_async({a.address(args[0])}, {a.address(args[2])}, emu_v, {vector});"


def bar(a, op, parts, args):
    what = next(p for p in parts[1:] if p in ("sync", "arrive", "red"))
    id_, count = a.ref(args[0]), a.ref(args[1]) if len(args) > 1 else "-1"
    if what == "sync":
        return f"emu_barrier((int){id_}, (int){count}, 0, 0);"
    if what == "arrive":
        return f"emu_barrier_arrive((int){id_}, (int){count});"
    return None


def barrier(a, op, parts, args):
    if parts[1] == "cluster":
        return "emu_cluster_arrive();" if parts[2] == "arrive" else "emu_cluster_wait();"
    return bar(a, op, parts, args)
