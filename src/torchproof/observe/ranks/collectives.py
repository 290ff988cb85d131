"""Reports the collectives of this process while it runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

from torchproof.process import Stream
from torchproof.records import whose

# Between two looks. The last one before a rank is killed may be this old.
_INTERVAL_S = 0.5
BUFFER_SIZE = 2000  # collectives between two looks that torch remembers


class CollectiveReporter:
    """A thread that writes new collectives, those that ended, and that it is alive."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._newest = -1
        self._active: set[int] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._reporting = threading.Lock()

    def start(self) -> None:
        name = "torchproof-collectives"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after a last look."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self._report()

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self._report()
            self._stream.write("alive")

    def _report(self) -> None:
        """Writes what is new. Only a group that exists has collectives."""
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available():
            return
        if not distributed.is_initialized() and self._newest < 0:
            return
        with self._reporting:
            self._write_news()

    def _write_news(self) -> None:
        from torchproof.torch_private import collectives

        recorded = list(collectives.recorded_collectives())
        new = [each for each in recorded if each.record > self._newest]
        ended = [
            [each.record, each.completed_s]
            for each in recorded
            if each.ended and each.record in self._active
        ]
        self._active.difference_update(record for record, _ in ended)
        self._active.update(each.record for each in new if not each.ended)
        first = new[0].record if new else None
        lost = 0 if first is None else first - self._newest - 1
        self._newest = max((each.record for each in new), default=self._newest)
        if new or ended:
            rows = [vars(each) for each in new]
            self._stream.write("collectives", new=rows, ended=ended, lost=lost)
        if self._active:
            self._write_places()

    def _write_places(self) -> None:
        """Writes the user's line of each collective that has not ended yet."""
        from torchproof.torch_private import collectives

        places = {
            record: place
            for record, stack in collectives.stacks_of_active().items()
            if record in self._active and (place := _user_line(stack)) is not None
        }
        if places:
            self._stream.write("collective_places", places=places)


def _user_line(stack: Sequence[tuple[str, int, str]]) -> list[Any] | None:
    return next((list(frame) for frame in stack if whose(frame[0]) == "user"), None)
