"""Progress on stderr: a line that is redrawn on a terminal, lines elsewhere.

The cursor stays at the start of the redrawn line, so that what other processes print
replaces it. Nothing has to be restored after Ctrl-C or if the process is killed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

from torchproof.records import PartState, SearchState, Trial, line
from torchproof.report import numbers, search_words

_PAUSE_S = 5.0  # between lines off a terminal, except those of trials
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """The progress of a verb: call it with a line.

    `enter` is for the parts of a check, `show` for the state of a search.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self.is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._lock = threading.RLock()
        self._text = ""
        self._state = SearchState()
        self._shown: set[tuple[str, str, str]] = set()  # trials that have a line
        self._part: PartState | None = None
        self._begun_at = self._entered_at = 0.0
        self._last = float("-inf")

    def __call__(self, text: str) -> None:
        """Show what is going on at this moment."""
        with self._lock:
            self._text = text
            if self.is_terminal:
                self._draw()
            elif time.monotonic() - self._last >= _PAUSE_S:
                self._print(text)

    def enter(self, part: PartState) -> None:
        """Begin a part of a check; only a terminal shows it."""
        with self._lock:
            self._entered_at = time.monotonic()
            if self._part is None:
                self._begun_at = self._entered_at
            self._part, self._text = part, ""
            if self.is_terminal:
                self._draw()

    def show(self, state: SearchState) -> None:
        """Print a line for each trial that has ended since the last call."""
        with self._lock:
            self._state = state
            fresh = [trial for trial in state.trials if _key(trial) not in self._shown]
            self._shown |= {_key(trial) for trial in fresh}
            earlier = sum(trial.resumed for trial in fresh)
            if earlier:
                self._print(f"{numbers.amount(earlier, 'trial')} of an earlier search")
            for trial in fresh:
                if not trial.resumed:
                    self._print(f"{_trial_text(trial)}; {self._left()}")
            if self.is_terminal:
                self._draw()

    def end(self) -> None:
        """Clear the redrawn line; other lines stay."""
        with self._lock:
            if self.is_terminal and not self._quiet:
                self._write(_CLEAR)
            self._quiet = True

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.end()

    def _draw(self) -> None:
        running = ", ".join(self._state.running)
        parts = [self._part_text(), self._text or running, self._left()]
        text = "; ".join(filter(None, parts))
        self._write(f"{_CLEAR}{line(text)[: _columns() - 1]}\r")

    def _print(self, text: str) -> None:
        self._last = time.monotonic()
        self._write(f"{_CLEAR if self.is_terminal else ''}{line(text)}\n")

    def _write(self, text: str) -> None:
        if not self._quiet:
            sys.stderr.write(text)
            sys.stderr.flush()

    def _left(self) -> str:
        """`7 trials left, within 5 min 12 s`; empty before the first one has ended."""
        if not self._state.trials:
            return ""
        if not self._state.left:
            return "no trials left"
        left = numbers.amount(self._state.left, "trial")
        return f"{left} left, within {numbers.duration(self._state.time_left_s)}"

    def _part_text(self) -> str:
        """`part 2 of 7, baseline: 31 s so far, about 1 min 12 s left`.

        An estimate that has run out is not shown, nor is one that does not exist.
        """
        if self._part is None:
            return ""
        part, now = self._part, time.monotonic()
        text = f"part {part.number} of {part.count}, {part.name}"
        text += f": {numbers.duration(now - self._begun_at)} so far"
        left_s = (part.left_s or 0.0) - (now - self._entered_at)
        if left_s >= 1:
            text += f", about {numbers.duration(left_s)} left"
        if part.limit_s is not None:
            text += f", {part.name} ends after {numbers.duration(part.limit_s)}"
        return text


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 80


def _key(trial: Trial) -> tuple[str, str, str]:
    return trial.name, trial.stage, trial.outcome


def _trial_text(trial: Trial) -> str:
    """`full: 1.93 ms, 1.62x eager, first call 12.1 s`."""
    if not trial.is_ranked:
        return f"{trial.name}: {search_words.why_not_ranked(trial)}"
    cells = [numbers.milliseconds(trial.step_ms)]
    if trial.vs_eager is not None and not trial.is_eager:
        cells.append(f"{numbers.times(trial.vs_eager, None, None)} eager")
    if trial.first_call_s is not None:
        warm = " with warm caches" if trial.is_warm else ""
        cells.append(f"first call {numbers.seconds(trial.first_call_s)}{warm}")
    return f"{trial.name}: {', '.join(cells)}"
