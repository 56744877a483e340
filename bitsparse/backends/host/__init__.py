"""The CPU backend: it takes and returns NumPy arrays, and the compiled part does the work."""

from bitsparse.backends.host.settings import get_num_threads, set_num_threads, set_simd, simd_level, simd_levels

__all__ = ["get_num_threads", "set_num_threads", "set_simd", "simd_level", "simd_levels"]
