"""Special registers and types of PTX as C++."""

from __future__ import annotations

SPECIAL = {
    "%cluster_ctarank": "emu_cluster_rank()",
    "%cluster_nctarank": "emu_cluster_size()",
    "%cluster_ctaid.x": "emu_cluster_rank()",
    "%cluster_nctaid.x": "emu_cluster_size()",
    "%laneid": "((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31u)",
    "%warpid": "((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) >> 5)",
    "%tid.x": "threadIdx.x",
    "%ctaid.x": "blockIdx.x",
    "%nctaid.x": "gridDim.x",
    "%ntid.x": "blockDim.x",
    "%smid": "0u",
    "%clock": "(unsigned)clock()",
    "%clock64": "(unsigned long long)clock64()",
    "%globaltimer": "(unsigned long long)clock64()",
}
LANE = SPECIAL["%laneid"]
SPECIAL |= {
    "%lanemask_lt": f"((1u << {LANE}) - 1u)",
    "%lanemask_le": f"((2u << {LANE}) - 1u)",
    "%lanemask_gt": f"~((2u << {LANE}) - 1u)",
    "%lanemask_ge": f"~((1u << {LANE}) - 1u)",
    "%lanemask_eq": f"(1u << {LANE})",
}


WIDTH = {
    "b8": 8,
    "u8": 8,
    "s8": 8,
    "b16": 16,
    "u16": 16,
    "s16": 16,
    "b32": 32,
    "u32": 32,
    "s32": 32,
    "f32": 32,
    "b64": 64,
    "u64": 64,
    "s64": 64,
    "f64": 64,
}


def ctype(kind):
    return {
        "u8": "unsigned char",
        "b8": "unsigned char",
        "s8": "signed char",
        "u16": "unsigned short",
        "b16": "unsigned short",
        "s16": "short",
        "s32": "int",
        "s64": "long long",
        "f32": "float",
        "f64": "double",
        "u64": "emu_u64",
        "b64": "emu_u64",
    }.get(kind, "emu_u32")
