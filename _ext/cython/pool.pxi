# All modules share one pool of threads, included by every module that computes on several.
from drive cimport bs_use_pool

from bitsparse._ext.bits import pool as _pool

bs_use_pool(<void *><size_t>_pool())
