"""Starts a module with a chosen memory layout, for measurements to have it in common.

    python -m torchproof.process.aslr NUMBER MODULE [ARGUMENT...]

Where the libraries of a process lie in memory is drawn by lot at its start, and decides
which of their instructions get into each other's way in the processor. Eager torch code
that runs small operations differs by up to 30 percent between two processes for that.
Processes of the same number get the same layout; another number, another layout.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

from torchproof.process import parent_death

_NOT_RANDOM = 0x0040000  # ADDR_NO_RANDOMIZE of <sys/personality.h>
_ASK = 0xFFFFFFFF
# Linux places libraries below the room it leaves for the stack: from 128 MiB on, as
# much as its limit says. So the limit moves them, by whole pages.
_LEAST_STACK_BYTES = 128 * 2**20
_PLACES = 16384
_STRIDE = 7919  # prime: neighbouring numbers lie far apart


def is_possible() -> bool:
    """Whether the system lets a process choose; containers may forbid it."""
    personality = _personality(_ASK)
    allowed = _personality(personality | _NOT_RANDOM) != -1
    if allowed:
        _personality(personality)
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    return allowed and (hard == resource.RLIM_INFINITY or hard >= _stack_bytes(-1))


def choose(number: int) -> None:
    """The layout of whatever this process executes next."""
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
    os.execv(sys.executable, [sys.executable, "-m", module, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
