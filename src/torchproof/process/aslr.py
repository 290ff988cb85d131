"""Starts a module with a fixed memory layout, so that measurements share one layout.

    python -m torchproof.process.aslr NUMBER MODULE [ARGUMENT...]

Address space layout randomization (ASLR) places the libraries of each process at random
addresses, and the addresses affect the processor's caches and branch prediction. Eager
torch code with small operations therefore differs by up to 30 percent between two
processes. Processes with the same number get the same layout.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

from torchproof.process import parent_death

_NOT_RANDOM = 0x0040000  # ADDR_NO_RANDOMIZE of <sys/personality.h>
_ASK = 0xFFFFFFFF
# Linux places libraries below the space that it reserves for the stack: its limit, but
# at least 128 MiB. So the limit moves the libraries, by whole pages.
_LEAST_STACK_BYTES = 128 * 2**20
_PLACES = 16384
_STRIDE = 7919  # prime: neighbouring numbers lie far apart


def is_possible() -> bool:
    """Whether the system lets a process set its layout; containers may forbid it."""
    personality = _personality(_ASK)
    allowed = _personality(personality | _NOT_RANDOM) != -1
    if allowed:
        _personality(personality)
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    return allowed and (hard == resource.RLIM_INFINITY or hard >= _stack_bytes(-1))


def choose(number: int) -> None:
    """Sets the layout of the next program that this process executes."""
    if is_possible():
        _personality(_personality(_ASK) | _NOT_RANDOM)
        _, hard = resource.getrlimit(resource.RLIMIT_STACK)
        place = number * _STRIDE % _PLACES
        resource.setrlimit(resource.RLIMIT_STACK, (_stack_bytes(place), hard))


def _stack_bytes(place: int) -> int:
    return _LEAST_STACK_BYTES + place % _PLACES * resource.getpagesize()


def _personality(persona: int) -> int:
    return int(ctypes.CDLL(None).personality(ctypes.c_ulong(persona)))


def main(arguments: list[str]) -> None:
    number, module, *rest = arguments
    parent_death.hold()
    choose(int(number))
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
