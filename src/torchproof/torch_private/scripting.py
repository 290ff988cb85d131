"""Lets torch.jit.script read the source of an object that replaces a method.

TorchScript finds the source through the file of a function or method, which other
callables do not have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


@functools.cache
def read_source_of(kind: type, plain: Callable[[Any], Callable[..., Any]]) -> None:
    """Makes TorchScript read the source of `plain(instance)` for this class."""
    from torch import _sources

    original = _sources.get_source_lines_and_file

    @functools.wraps(original)
    def get_source(obj: Any, *args: Any, **kwargs: Any) -> Any:
        function = plain(obj) if isinstance(obj, kind) else obj
        return original(function, *args, **kwargs)

    _sources.get_source_lines_and_file = get_source
