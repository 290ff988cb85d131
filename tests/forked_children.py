"""A stand-in for the children that torchproof starts: forked where torch is loaded.

`import torch` is paid for once in a test run, not once in each child. They are those a
user gets otherwise, except that nothing that is read while torch is imported
(TORCH_LOGS, TORCH_TRACE) can be given to them, and a script finds torch imported.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from forked_commands import Forked, with_popen

from torchproof.process import children

__all__ = ["Forked", "forked"]


@contextmanager
def forked() -> Iterator[None]:
    """Children that start meanwhile are forked, if they run a module."""

    def popen(command: Sequence[str], **settings: Any) -> Any:
        kind = Forked if "-m" in command else subprocess.Popen
        return kind(command, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(children, "subprocess", with_popen(popen))
        yield
