"""The source lines that Dynamo traces."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from torchproof.torch_private.hooks import patched


@contextlib.contextmanager
def traced_lines(note: Callable[[CodeType, int], None]) -> Iterator[None]:
    """Calls `note(code, line)` whenever tracing reaches another line.

    Tracing may stop within a line, at a graph break.
    """
    symbolic = importlib.import_module("torch._dynamo.symbolic_convert")
    owner = symbolic.InstructionTranslatorBase
    original = owner.starts_line

    @functools.wraps(original)
    def starts_line(self: Any, line: int) -> None:
        if self.lineno != line:
            note(self.f_code, line)
        original(self, line)

    with patched(owner, "starts_line", starts_line):
        yield
