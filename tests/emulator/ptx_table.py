"""The PTX instructions that are known, each name before its own prefixes; compilation fails with the name of an unknown one."""

from __future__ import annotations

from emulator import ptx_async, ptx_matrix, ptx_scalar


def _nothing(a, op, parts, args):
    return ""


TABLE = [
    ("mov", ptx_scalar.mov),
    ("setp", ptx_scalar.setp),
    ("selp", ptx_scalar.selp),
    ("and", ptx_scalar.binary("&")),
    ("or", ptx_scalar.binary("|")),
    ("xor", ptx_scalar.binary("^")),
    ("add", ptx_scalar.binary("+")),
    ("sub", ptx_scalar.binary("-")),
    ("shl", ptx_scalar.shift("<<")),
    ("shr", ptx_scalar.shift(">>")),
    ("not", ptx_scalar.call("{0} = ~{1};")),
    ("min.u16x2", ptx_scalar.call("{0} = __vminu2({1}, {2});")),
    ("mad", ptx_scalar.mad),
    ("mul", ptx_scalar.mul),
    ("lop3", ptx_scalar.lop3),
    ("prmt", ptx_scalar.prmt),
    ("dp4a", ptx_scalar.dp4a),
    ("shf", ptx_scalar.shf),
    ("popc.b32", ptx_scalar.popc("__popc")),
    ("popc.b64", ptx_scalar.popc("__popcll")),
    ("brev.b32", ptx_scalar.popc("__brev")),
    ("cvt", ptx_scalar.cvt),
    ("bfind.u32", ptx_scalar.call("{0} = {1} ? 31 - __clz((int){1}) : ~0u;")),
    ("vote", ptx_scalar.vote),
    ("red", ptx_scalar.red),
    ("atom", ptx_scalar.red),
    ("elect", ptx_scalar.elect),
    ("cvta", ptx_scalar.cvta),
    ("mapa", ptx_scalar.mapa),
    ("st.async", ptx_async.st_async),
    ("st", ptx_scalar.memory(True)),
    ("ld", ptx_scalar.memory(False)),
    ("ldu", ptx_scalar.memory(False)),
    ("cp.async.bulk", ptx_async.bulk),
    ("cp.reduce.async.bulk", ptx_async.bulk),
    ("cp.async", ptx_async.cp_async),
    ("mbarrier", ptx_async.mbarrier),
    ("bar", ptx_async.bar),
    ("barrier", ptx_async.barrier),
    ("mma.sync", ptx_matrix.mma),
    ("ldmatrix.sync", ptx_matrix.ldmatrix),
    ("wgmma", ptx_matrix.wgmma),
    ("fence", _nothing),
    ("membar", _nothing),
    ("prefetch", _nothing),
    ("prefetchu", _nothing),
    ("griddepcontrol", _nothing),
    ("setmaxnreg", _nothing),
    ("createpolicy", ptx_scalar.call("{0} = 0;")),
    ("discard", _nothing),
    ("applypriority", _nothing),
    ("nanosleep", _nothing),
    ("trap", lambda a, op, parts, args: "__trap();"),
    ("pragma", _nothing),
]
