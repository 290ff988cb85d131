"""Triton kernels of the fault matrix; Triton reads their source from this file."""

import triton
import triton.language as tl


@triton.jit
def astray(place, distance):  # type: ignore[no-untyped-def]
    tl.store(place + distance.to(tl.int64), 1.0)
