"""The frames of a running target: whose code they are, and which of them to show."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from torchproof.records import Frame, whose
from torchproof.targets import frame_of
from torchproof.torch_private import backends

_SHOWN = 12  # frames of a stack, innermost
_DRIVERS = (
    "torchproof/observe/audit/running.py",
    "torchproof/targets/script.py",
)  # call the target
_COMPILED = "torch/_dynamo/eval_frame.py"  # around each call of compiled code


@functools.lru_cache(maxsize=4096)
def is_theirs(file: str) -> bool:
    """The user's code or a library's, and not what Inductor wrote."""
    return whose(file) in {"user", "library"} and not file.startswith(_generated())


@functools.cache
def _generated() -> str:
    return backends.cache_folder()


def user_stack() -> tuple[Frame, ...]:
    """Their frames, outermost first; of the main thread if this one has none.

    On CUDA a backward runs in a thread of autograd, while its caller waits.
    """
    frames = _frames(sys._getframe(1))
    if frames or threading.current_thread() is threading.main_thread():
        return frames
    main = threading.main_thread().ident
    return _frames(sys._current_frames().get(main or 0))


def _frames(frame: FrameType | None) -> tuple[Frame, ...]:
    frames = [
        Frame(each.f_code.co_filename, each.f_lineno, each.f_code.co_name)
        for each in _theirs(frame)
    ]
    return tuple(reversed(frames[:_SHOWN]))


def _theirs(frame: FrameType | None) -> Iterator[FrameType]:
    """Inner first, up to what calls the target."""
    while frame is not None and not frame.f_code.co_filename.endswith(_DRIVERS):
        if is_theirs(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def compiled_function() -> Frame | None:
    """The function whose compiled code is running."""
    inner = next(_theirs(sys._getframe(1)), None)
    return frame_of(inner.f_code) if inner is not None else None


def running() -> list[FrameType]:
    """Their frames in all threads, inner first.

    Frames of compiled code are left out: their variables are not those of the source.
    This function's own frame must not be among its variables: it would outlive its
    call, and with it the variables of everything that is running.
    """
    this_thread = threading.get_ident()
    others = {k: v for k, v in sys._current_frames().items() if k != this_thread}
    frames = _outside_compiled(sys._getframe(1))
    for top in others.values():
        frames += _outside_compiled(top)
    return frames


def _outside_compiled(frame: FrameType | None) -> list[FrameType]:
    frames: list[FrameType] = []
    while frame is not None:
        if frame.f_code.co_filename.endswith(_COMPILED):
            frames = []
        if is_theirs(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    return frames
