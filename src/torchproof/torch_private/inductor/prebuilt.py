"""Loads compiled C++ code without asking the C++ compiler.

Before torch loads a kernel that is compiled already, it compiles a header for the
kernels that may follow, and probes in child processes which vector instructions work
here. Together that takes seconds, and without a C++ compiler it fails.
"""

from __future__ import annotations

import contextlib
import importlib
import platform
from collections.abc import Iterator, Sequence
from typing import Any

from torchproof.torch_private import contract
from torchproof.torch_private.hooks import patched

_SETS = "torch._inductor.cpu_vec_isa"
_CODE = "torch._inductor.codecache"
FEATURE = "code without a C++ compiler"


def vector_sets() -> tuple[str, ...]:
    """The sets of vector instructions that torch generates code for on this machine."""
    if contract.missing(FEATURE):
        return ()
    sets: Any = importlib.import_module(_SETS)
    return tuple(str(each) for each in sets.valid_vec_isa_list())


@contextlib.contextmanager
def without_probes(vector_sets: Sequence[str]) -> Iterator[None]:
    """Takes the vector instructions of the build, and includes headers as they are.

    What is compiled meanwhile is right, and takes longer than with the header. Without
    sets of the build, torch probes as usual.
    """
    with contextlib.ExitStack() as stack:
        if vector_sets and not contract.missing(FEATURE):
            code: Any = importlib.import_module(_CODE)
            stack.enter_context(patched(code, "_precompile_header", _as_it_is))
            if platform.machine() == "x86_64":  # the others are not probed
                sets: Any = importlib.import_module(_SETS)
                known = [
                    e for e in sets.supported_vec_isa_list if str(e) in vector_sets
                ]
                stack.enter_context(patched(sets, "valid_vec_isa_list", lambda: known))
        yield


def _as_it_is(header: str, *_: Any, **__: Any) -> str:
    return header
