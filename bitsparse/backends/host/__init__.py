"""The CPU backend: NumPy arrays in, NumPy arrays out, computed by the compiled part."""

from bitsparse.backends.host.settings import get_num_threads, set_num_threads, set_simd, simd_level, simd_levels

__all__ = ["get_num_threads", "set_num_threads", "set_simd", "simd_level", "simd_levels"]
