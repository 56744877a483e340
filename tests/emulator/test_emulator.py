"""The emulator and the fake CuPy agree with NumPy, and detect every kind of mistake that they must detect."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import cupy
import numpy as np
import pytest

import emulator
from bitsparse import jit
from emulator import runtime
from emulator.builds import compile_source
from emulator.draw import PARTS, is_drawn, part_of


class P(ctypes.Structure):
    _fields_ = (("a", ctypes.c_void_p), ("b", ctypes.c_void_p), ("c", ctypes.c_void_p), ("n", ctypes.c_int))


HEAD = """
typedef unsigned int u32;
struct P { const u32 *a, *b; u32 *c; int n; };
"""


def run(body, a, b, c, n=0, grid=1, threads=32, shared=0, cluster=1, arch="sm_90a"):
    blob = compile_source(HEAD + body, "t.cu", {}, [], arch)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "t.so"
        file.write_bytes(blob)
        kernel = jit.Kernel(cupy.RawModule(path=str(file)).get_function("k"), "k")
        kernel.launch(grid, threads, P(a.data.ptr, b.data.ptr, c.data.ptr, n), shared=shared, cluster=cluster)()
    return c.get()


rng = np.random.default_rng(0)


def words(*shape):
    return rng.integers(0, 1 << 32, shape, np.uint32)


MMA = """
extern "C" __global__ void k(const P p)
{
    const int lane = threadIdx.x, g = lane >> 2, t = lane & 3;
    u32 a[4] = {p.a[g * 8 + t], p.a[(g + 8) * 8 + t], p.a[g * 8 + t + 4], p.a[(g + 8) * 8 + t + 4]};
    u32 b[2] = {p.b[g * 8 + t], p.b[g * 8 + t + 4]};
    int c[4] = {1, 2, 3, 4};
    asm volatile("%s {%%0,%%1,%%2,%%3}, {%%4,%%5,%%6,%%7}, {%%8,%%9}, {%%0,%%1,%%2,%%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    for (int e = 0; e < 4; e++)
        p.c[(g + 8 * (e / 2)) * 8 + 2 * t + e %% 2] = c[e];
}
"""
EXTRA = np.tile(np.array([[1, 2]]), (8, 4)), np.tile(np.array([[3, 4]]), (8, 4))


@pytest.mark.parametrize("kind", ["and", "u8", "s8", "u8.s8"])
def test_mma(kind):
    op = {
        "and": "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc",
        "u8": "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32",
        "s8": "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32",
        "u8.s8": "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32",
    }[kind]
    a, b = words(16, 8), words(8, 8)
    got = run(MMA % op, cupy.asarray(a), cupy.asarray(b), cupy.zeros((16, 8), np.uint32)).view(np.int32)
    if kind == "and":
        x, y = np.unpackbits(a.view(np.uint8), axis=1).astype(int), np.unpackbits(b.view(np.uint8), axis=1).astype(int)
    else:
        types = {"u8": (np.uint8, np.uint8), "s8": (np.int8, np.int8), "u8.s8": (np.uint8, np.int8)}[kind]
        x, y = a.view(types[0]).astype(int), b.view(types[1]).astype(int)
    np.testing.assert_array_equal(got, x @ y.T + np.vstack(EXTRA))


def test_ldmatrix_and_cp_async():
    body = """
extern "C" __global__ void k(const P p)
{
    __shared__ __align__(16) u32 s[32 * 4];
    const u32 at = (u32)__cvta_generic_to_shared(s);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at + threadIdx.x * 16), "l"(p.a + threadIdx.x * 4) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group %0;" :: "n"(0) : "memory");
    __syncwarp();
    u32 d[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(at + threadIdx.x * 16) : "memory");
    for (int i = 0; i < 4; i++) p.c[i * 32 + threadIdx.x] = d[i];
}
"""
    a = words(32, 4)
    got = run(body, cupy.asarray(a), cupy.asarray(a), cupy.zeros(128, np.uint32))
    # lane 4 r + c of matrix i has word c of row 8 i + r
    np.testing.assert_array_equal(got, a.ravel())
    late = run(
        body.replace('asm volatile("cp.async.wait_group %0;" :: "n"(0) : "memory");', ""),
        cupy.asarray(a),
        cupy.asarray(a),
        cupy.zeros(128, np.uint32),
    )
    assert (late == 0xCDCDCDCD).all()
    turned = run(
        body.replace(".x4.shared", ".x4.trans.shared"), cupy.asarray(a), cupy.asarray(a), cupy.zeros(128, np.uint32)
    ).view(np.uint16)
    want = a.view(np.uint16).reshape(4, 8, 8).swapaxes(1, 2).ravel()
    np.testing.assert_array_equal(turned, want)


def test_cp_async_with_zero_fill():
    body = """
extern "C" __global__ void k(const P p)
{
    extern __shared__ __align__(128) u32 s[];
    const u32 at = (u32)__cvta_generic_to_shared(s), take = threadIdx.x % 5 * 4 > 16 ? 16 : threadIdx.x % 5 * 4;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(at + threadIdx.x * 16), "l"(p.a + threadIdx.x * 4), "r"(take) : "memory");
    asm volatile("cp.async.commit_group;\\ncp.async.wait_all;" ::: "memory");
    __syncthreads();
    for (int i = 0; i < 4; i++) p.c[threadIdx.x * 4 + i] = s[threadIdx.x * 4 + i];
}
"""
    a = words(64, 4)
    got = run(body, cupy.asarray(a), cupy.asarray(a), cupy.zeros((64, 4), np.uint32), threads=64, shared=1024)
    want = np.where(np.arange(4)[None] < (np.arange(64) % 5)[:, None], a, 0)
    np.testing.assert_array_equal(got, want)


def test_warp_and_block_functions():
    body = """
extern "C" __global__ void k(const P p)
{
    const int i = threadIdx.x, lane = i & 31;
    u32 v = p.a[i];
    u32 *c = p.c + i * 12;
    c[0] = __shfl_xor_sync(~0u, v, 5), c[1] = __shfl_up_sync(~0u, v, 3), c[2] = __shfl_down_sync(~0u, v, 9, 16);
    c[3] = __shfl_sync(~0u, v, lane * 7, 8);
    c[4] = __ballot_sync(~0u, v & 1), c[5] = __any_sync(~0u, v < 1000u), c[6] = __all_sync(~0u, v > 3u);
    c[7] = __match_any_sync(~0u, v & 3);
    c[8] = __reduce_add_sync(~0u, v), c[9] = __reduce_or_sync(~0u, v), c[10] = __syncthreads_count(v & 1);
    c[11] = __brev(v) ^ __byte_perm(v, v >> 1, 0x5140);
}
"""
    a = words(96)
    got = run(body, cupy.asarray(a), cupy.asarray(a), cupy.zeros((96, 12), np.uint32), threads=96)
    for w, lane in itertools.product(range(3), range(32)):
        v, i = a[32 * w : 32 * w + 32], 32 * w + lane
        row = [
            v[lane ^ 5],
            v[lane - 3] if lane >= 3 else v[lane],
            v[lane + 9] if lane % 16 + 9 < 16 else v[lane],
            v[(lane & ~7) + (lane * 7 & 7)],
        ]
        row += [sum(int(x & 1) << j for j, x in enumerate(v)), int((v < 1000).any()), int((v > 3).all())]
        row += [
            sum(1 << j for j, x in enumerate(v) if x & 3 == v[lane] & 3),
            int(v.astype(np.uint64).sum()) & 0xFFFFFFFF,
            np.bitwise_or.reduce(v),
            int((a & 1).sum()),
        ]
        x, y = int(v[lane]), int(v[lane]) >> 1
        b = [(x | y << 32) >> 8 * s & 255 for s in (0, 4, 1, 5)]
        row += [int(f"{x:032b}"[::-1], 2) ^ sum(z << 8 * j for j, z in enumerate(b))]
        assert [int(z) for z in got[i]] == [int(z) for z in row]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("p.c[2 * p.n] = 1;", "illegal address"),
        ("p.c[4096 * p.n - 1] = 1;", "illegal address"),
        ("p.c[p.n] = 1;", "past the end of an allocation"),
        ("p.c[-1] = 1;", "before the start of an allocation"),
        ("if (threadIdx.x < 5) __syncwarp();", "ended|ends|deadlock|waits"),
        ("if (threadIdx.x != 3) __syncthreads(); else __syncwarp(~0u);", "deadlock"),
        ("*(uint4 *)(p.c + 1) = make_uint4(0, 0, 0, 0);", "misaligned"),
        ("p.c[0] = 1u << (threadIdx.x + 1);", "shift"),
        ("int x[4]; x[threadIdx.x & 7] = 1; p.c[0] = x[1];", "out of bounds"),
        ("__trap();", "__trap"),
        ("u32 bad = threadIdx.x & 1 ? __ballot_sync(~0u, 1) : __shfl_sync(~0u, 1, 0); p.c[0] = bad;", "diverged"),
        ("extern __shared__ u32 s[]; s[2000] = 1;", "illegal address"),
        ('asm volatile("ld.shared.b32 %0, [%1];" : "=r"(p.c[0]) : "r"(5000));', "beyond the block's shared memory"),
    ],
)
def test_what_is_detected(line, message):
    c = cupy.zeros(64, np.uint32)[:64]
    with pytest.raises(runtime.EmulationError, match=message):
        run('extern "C" __global__ void k(const P p) { ' + line + " }", c, c, c, n=64, shared=512)
    # the emulator still works after an error
    run('extern "C" __global__ void k(const P p) { p.c[threadIdx.x] = threadIdx.x; }', c, c, c)
    assert (c.get()[:32] == np.arange(32)).all()


def test_cluster_and_distributed_shared_memory():
    body = """
extern "C" __global__ void k(const P p)
{
    __shared__ u32 mine[32];
    u32 rank, remote, v;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    mine[threadIdx.x] = 100 * blockIdx.x + threadIdx.x;
    asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");
    const u32 at = (u32)__cvta_generic_to_shared(mine + threadIdx.x);
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"((rank + 1) & 3));
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(remote) : "memory");
    p.c[blockIdx.x * 32 + threadIdx.x] = v;
    asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");
}
"""
    c = cupy.zeros((8, 32), np.uint32)
    got = run(body, c, c, c, grid=8, cluster=4)
    want = [[100 * (4 * (b // 4) + (b + 1) % 4) + t for t in range(32)] for b in range(8)]
    np.testing.assert_array_equal(got, want)


def test_threads_that_launch_one_kernel_load_its_copies_once(tmp_path, monkeypatch):
    file = tmp_path / "t.so"
    body = 'extern "C" __global__ void k(const P p) { __shared__ u32 x[32]; x[threadIdx.x] = p.n; p.c[threadIdx.x] = x[0]; }'
    file.write_bytes(compile_source(HEAD + body, "t.cu", {}, [], "sm_90a"))
    monkeypatch.setattr(runtime.settings, "CACHE", tmp_path)
    function, install = runtime.Function(str(file), "k"), runtime.install_file

    def slowly(*arguments):
        time.sleep(0.02)  # the other thread's turn
        install(*arguments)

    monkeypatch.setattr(runtime, "install_file", slowly)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(function.load_ranks, [4, 4]))
    assert len(set(function.ranges)) == len(function.ranges) == len(function.entries) == 4


def test_fake_cupy():
    a = cupy.arange(12, dtype=np.float32).reshape(3, 4)
    h = a.get()
    for bad in (
        lambda: a + h,
        lambda: h + a,
        lambda: np.where(h > 1, a, a),
        lambda: cupy.add(a, h),
        lambda: np.asarray(a),
        lambda: a.__setitem__(0, h[0]),
        lambda: np.add(a, a, out=h),
        lambda: a[h[0].astype(int)],
    ):
        with pytest.raises(TypeError):
            bad()
    assert isinstance(np.add(a, 1), cupy.ndarray) and isinstance(a.sum(), cupy.ndarray) and a.sum().shape == ()
    assert isinstance(cupy.where(a > 3, a, 0), cupy.ndarray) and isinstance(np.isfinite(a), cupy.ndarray)
    b = a[1:, ::2]
    b[...] = 9
    assert a[1, 0] == 9 and b.base is a.base and b.strides == (16, 8)
    assert (
        cupy.from_dlpack(a).data.ptr == a.data.ptr
        and cupy.get_array_module(a) is cupy
        and cupy.get_array_module(h) is np
    )
    assert cupy.broadcast_to(a[0], (5, 4)).strides == (0, 4)
    s = cupy.cuda.Stream(non_blocking=True)
    x = cupy.zeros(3, np.int32)
    with s:
        assert cupy.cuda.get_current_stream() == s
        s.begin_capture()
        x += 1
        y = x * 2
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
            x.get()
        g = s.end_capture()
    assert int(x[0]) == 0
    g.launch(), g.launch(s)
    assert int(x[0]) == 2 and int(y[0]) == 4
    with cupy.cuda.Stream.from_external(SimpleNamespace(__cuda_stream__=lambda: (0, s.ptr))) as e:
        assert cupy.cuda.get_current_stream().ptr == s.ptr == e.ptr
    assert cupy.cuda.get_current_stream().ptr == 0
    with cupy.cuda.Device(0):
        assert a.device == cupy.cuda.Device(0)
    assert (cupy.concatenate([a, a]).shape, cupy.stack([a, a]).shape, cupy.count_nonzero(a).shape) == (
        (6, 4),
        (2, 3, 4),
        (),
    )


def test_copies_happen_as_late_as_they_may():
    host = np.frombuffer(cupy.cuda.alloc_pinned_memory(8), np.uint8, 8)
    assert cupy.cuda.pinned_memory.is_memory_pinned(host.ctypes.data)
    assert not cupy.cuda.pinned_memory.is_memory_pinned(np.ones(9).ctypes.data)
    to_device, to_host = cupy.cuda.runtime.memcpyHostToDevice, cupy.cuda.runtime.memcpyDeviceToHost
    stream, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))

    def send(there, value):
        host[...] = value
        cupy.cuda.runtime.memcpyAsync(there.data.ptr, host.ctypes.data, 8, to_device, stream.ptr)
        return stream.record()

    there = cupy.zeros(8, np.uint8)
    event = send(there, 1)
    assert there.sum() == 0  # read by another stream, which did not wait
    assert not event.done
    assert event.done
    assert there.sum() == 8
    for wait in (lambda e: e.synchronize(), lambda e: other.wait_event(e), lambda _: stream.synchronize()):
        before = int(there[0])
        event = send(there, before + 1)
        late = send(there, 77)
        wait(event)
        assert int(there[0]) in (77, before + 1)
        late.synchronize()
        assert int(there[0]) == 77
    send(there, 5)
    host[...] = 6  # too early
    with stream:
        assert (there + 1).get().tolist() == [7] * 8
    back = np.zeros(8, np.uint8)
    cupy.cuda.runtime.memcpyAsync(back.ctypes.data, there.data.ptr, 8, to_host, stream.ptr)
    there[...] = 9  # too early
    cupy.cuda.Device().synchronize()
    assert back.tolist() == [9] * 8


def test_contraction_of_plain_operators_only():
    body = """
extern "C" __global__ void k(const P p)
{
    const float a = __uint_as_float(p.a[0]), b = __uint_as_float(p.a[1]), c = __uint_as_float(p.a[2]);
    p.c[0] = __float_as_uint(a * b + c);
    p.c[1] = __float_as_uint(__fadd_rn(__fmul_rn(a, b), c));
}
"""
    x = np.array([1 + 2.0**-12, 1 + 2.0**-12, -1], np.float32)
    got = run(
        body, cupy.asarray(x.view(np.uint32)), cupy.zeros(3, np.uint32), cupy.zeros(2, np.uint32), threads=1
    ).view(np.float32)
    assert got[1] == x[0] * x[1] + x[2] and got[0] == 2.0**-11 + 2.0**-24 and got[0] != got[1]


def test_the_fake_cupy_is_found_only_when_asked_for():
    code = "import importlib.util, emulator; found = importlib.util.find_spec('cupy'); print(found and found.origin)"
    environment = {"PYTHONPATH": str(Path(emulator.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert not done.stdout.startswith(str(emulator.SITE))
    assert Path(cupy.__file__).is_relative_to(emulator.SITE)


# Collects as a run on the emulator does, with one more plugin that compares the draws with each other.
UNION = """
import sys
import pytest

class Compare:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        from emulator import draw, plugin

        emulated = {item.nodeid for item in plugin.chosen(items, None) if item.get_closest_marker("gpu")}
        draws = [{item.nodeid for item in plugin.chosen(items, seed)} for seed in range(draw.PARTS)]
        assert len(emulated) > 5000 and set().union(*draws) == emulated
        assert sum(map(len, draws)) == len(emulated), "a test is in two draws"
        assert all(0.8 / draw.PARTS < len(part) / len(emulated) < 1.2 / draw.PARTS for part in draws)
        print("draws of", *map(len, draws))

sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "emulator.plugin", "--collect-only", sys.argv[1]], [Compare()]))
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_draws_take_every_test_that_can_be_emulated(arch: str):
    tests = Path(emulator.__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": str(tests), "BITSPARSE_EMULATE_ARCH": arch}
    command = [sys.executable, "-c", UNION, str(tests)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tests.parent)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "draws of" in done.stdout


def test_a_draw_depends_on_names_and_seed_alone():
    assert [part_of(name) for name in ("tests/test_a.py::test_b", "tests/test_a.py::test_b[1]")] == [7, 3]
    assert is_drawn("tests/test_a.py::test_b", 7) and is_drawn("tests/test_a.py::test_b", 7 + 32 * 10**9)
    assert not any(is_drawn("tests/test_a.py::test_b", seed) for seed in range(PARTS) if seed != 7)
