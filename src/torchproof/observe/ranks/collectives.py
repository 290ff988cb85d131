"""Reports the collectives of this process while it runs."""

from __future__ import annotations

import sys
import threading
from typing import Any

from torchproof.process import Stream
from torchproof.records import whose

# Between two looks. The last one before a rank is killed may be this old. A program
# with many collectives is looked at more often.
_INTERVAL_S = 0.5
_SHORTEST_S = 0.1
BUFFER_SIZE = 300  # collectives that torch remembers; each costs time at each look


class CollectiveReporter:
    """A thread that writes new collectives, those that ended, and that it is alive."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._newest = -1
        self._active: set[int] = set()
        self._interval_s = _INTERVAL_S
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
        while not self._stop.wait(self._interval_s):
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
        if recorded:  # what torch has forgotten is not known to go on
            self._active = {r for r in self._active if r >= recorded[0].record}
        collective = [each for each in new if not each.is_p2p]
        self._active.update(each.record for each in collective if not each.ended)
        first = new[0].record if new else None
        lost = 0 if first is None else first - self._newest - 1
        self._newest = max((each.record for each in new), default=self._newest)
        if collective or ended or lost:
            rows = [vars(each) for each in collective]
            self._stream.write("collectives", new=rows, ended=ended, lost=lost)
        if 2 * len(new) > BUFFER_SIZE:
            self._interval_s = max(_SHORTEST_S, self._interval_s / 2)
        if self._active:
            self._write_place()

    def _write_place(self) -> None:
        """Writes the line of the program that waits for the last collective."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None:
            if whose(frame.f_code.co_filename) == "user":
                place = [frame.f_code.co_filename, frame.f_lineno]
                record = max(self._active)
                self._stream.write("collective_place", record=record, place=place)
                return
            frame = frame.f_back
