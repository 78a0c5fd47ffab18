"""Settings of glibc's allocator for processes that read from TLS connections.

uvloop reads TLS records into a new object of 256 kB. That is above glibc's first threshold for
mmap, so every response would map memory, fault its pages in and unmap it again: two thirds of
the CPU time of a small response. With higher thresholds the block comes from the heap, and the heap
is not given back between two responses.
"""

from __future__ import annotations

import ctypes
import functools

# Names and numbers of <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_MMAP_FROM_BYTES = 4 << 20
_TRIM_FROM_BYTES = 32 << 20


@functools.cache
def keep_large_blocks() -> bool:
    """Raises the thresholds of this process, once. Returns False where there is no glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        # musl and macOS have no mallopt.
        return False
    set_mmap = mallopt(_M_MMAP_THRESHOLD, _MMAP_FROM_BYTES)
    set_trim = mallopt(_M_TRIM_THRESHOLD, _TRIM_FROM_BYTES)
    return bool(set_mmap and set_trim)
