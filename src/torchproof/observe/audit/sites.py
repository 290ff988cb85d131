"""Where the program stands, for watchers: its own frames, without generated code."""

from __future__ import annotations

from torchproof.records import Frame
from torchproof.targets import stack
from torchproof.torch_private import backends


def site() -> tuple[Frame, ...]:
    """The Python stack, outermost first; what Inductor generated is nobody's line."""
    folder = backends.cache_folder()
    return tuple(frame for frame in stack() if not frame.file.startswith(folder))
