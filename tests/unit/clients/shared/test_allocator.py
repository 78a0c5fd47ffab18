"""The allocator's thresholds, seen from outside: how often a process maps memory."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from squall.clients.shared.allocator import keep_large_blocks

# `os.read` allocates what it may read and shrinks it to what it read, as uvloop does for TLS.
_READS = """
import os, resource, sys
from squall.clients.shared.allocator import keep_large_blocks
if sys.argv[1] == "keep":
    assert keep_large_blocks()
source, sink = os.pipe()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(1000):
    os.write(sink, b"x")
    os.read(source, 256 << 10)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt belongs to glibc")
def test_a_small_answer_in_a_large_block_costs_no_page_faults() -> None:
    faults = {
        way: int(subprocess.check_output([sys.executable, "-c", _READS, way]))
        for way in ("default", "keep")
    }
    assert faults["default"] >= 1000
    assert faults["keep"] < 100


def test_the_thresholds_are_set_once() -> None:
    assert keep_large_blocks() is keep_large_blocks()
