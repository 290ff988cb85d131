"""The source of what stands in for a method, for torch.jit.script.

TorchScript reads the source of a method by its file, which Python knows of functions
and methods alone. All else that it asks for is an attribute of the function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

PROBES: dict[str, tuple[str, ...]] = {
    "the source of scripted functions": ("torch._sources:get_source_lines_and_file",),
}


@functools.cache
def read_source_of(kind: type, plain: Callable[[Any], Callable[..., Any]]) -> None:
    """For an instance of this class, TorchScript reads the source of `plain(it)`."""
    from torch import _sources

    original = _sources.get_source_lines_and_file

    @functools.wraps(original)
    def get_source(obj: Any, *args: Any, **kwargs: Any) -> Any:
        function = plain(obj) if isinstance(obj, kind) else obj
        return original(function, *args, **kwargs)

    _sources.get_source_lines_and_file = get_source
