"""A recording on the CPU that behaves as a CUDA graph does.

Recording notes the operations of one run, with the very tensors they took and gave, and
leaves memory as it was. A replay runs these operations again on these tensors, and
nothing else: no Python of the step, no other tensor. It also overwrites what later
recordings of its pool have allocated, which may be where it has its own intermediate
results. So whatever a CUDA graph would get wrong, this gets wrong as well.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchproof.runtime.cudagraph import graphed_step, recorder
from torchproof.runtime.cudagraph.capture import Pool, said_to_be_capturing
from torchproof.runtime.cudagraph.eager_recorder import EagerRecorder
from torchproof.runtime.tensors.storages import key_of
from torchproof.torch_private import trees

HOST = torch.device("cpu")


def home_of(tensors: Iterable[Tensor]) -> torch.device:
    return HOST


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Within this, steps are recorded on the CPU."""
    with (
        mock.patch.object(recorder, "Capture", Strip),
        mock.patch.object(recorder, "home_of", home_of),
        mock.patch.object(graphed_step, "Pool", StripPool),
    ):
        yield


class StripPool(Pool):
    def open(self) -> Any:
        return None

    def join(self) -> None:
        pass

    def bytes(self) -> int | None:
        return None


class Strip:
    """In place of `torchproof.runtime.cudagraph.capture.Capture`."""

    def __init__(self, device: torch.device, pool: Pool) -> None:
        self.pool = pool
        self.notes: list[tuple[Any, Any, Any, Any]] = []
        self.number = -1  # of the recording, in order

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def listening(self, note: Callable[[str], None]) -> Iterator[None]:
        yield

    def release(self) -> None:
        pass

    def rehearse(self, run: Callable[[], Any]) -> Any:
        with said_to_be_capturing():
            return run()

    def record(self, run: Callable[[], Any]) -> Any:
        eager_recorder = EagerRecorder(HOST)
        with said_to_be_capturing(), eager_recorder, _Noting(self.notes):
            output = run()
        for region in eager_recorder.saved.values():
            region.restore()
        self.number = 1 + max((each.number for each in self.pool.captures), default=0)
        self.pool.captures.add(self)
        return output

    def overwrite(self) -> None:
        """Destroys what the recording has allocated; its next replay makes it again."""
        for _, args, kwargs, noted in self.notes:
            taken = {key_of(each) for each in trees.tensors((args, kwargs))}
            for tensor in trees.tensors(noted):
                if tensor.is_floating_point() and key_of(tensor) not in taken:
                    with torch.inference_mode():  # it may be one of that mode
                        tensor.fill_(torch.nan)

    def replay(self) -> None:
        with torch.no_grad():
            for each in self.pool.captures:
                if each.number > self.number:
                    each.overwrite()
            for operation, args, kwargs, noted in self.notes:
                _renew(noted, operation(*args, **kwargs))

    def synchronize(self) -> None:
        pass

    def seconds_of(self, replays: int) -> float:
        begin = time.perf_counter()
        for _ in range(replays):
            self.replay()
        return (time.perf_counter() - begin) / replays

    def drop(self) -> None:
        self.pool.captures.discard(self)
        self.notes.clear()


class _Noting(TorchDispatchMode):
    def __init__(self, notes: list[tuple[Any, Any, Any, Any]]) -> None:
        super().__init__()
        self.notes = notes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.notes.append((func, args, kwargs or {}, result))
        return result


def _renew(noted: Any, fresh: Any) -> None:
    """Where memory was allocated in the recorded run, the result goes there again."""
    if isinstance(noted, Tensor):
        if noted.numel() and key_of(noted) != key_of(fresh):
            noted.copy_(fresh)
    elif isinstance(noted, list | tuple):
        for one, other in zip(noted, fresh, strict=True):
            _renew(one, other)
