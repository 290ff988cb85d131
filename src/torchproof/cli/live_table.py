"""What a verb is doing, live on stderr: a table on a terminal, lines elsewhere.

The cursor is never hidden, so that nothing has to bring it back: not after Ctrl-C, not
after Ctrl-Z, not when the process is killed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchproof.cli import output_relay
from torchproof.records import PartState, SearchState, Trial, line
from torchproof.report import numbers, search_words

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table

MOST = 8  # trials that are shown, eager besides
_PAUSE_S = 5.0  # between lines that tell no trial
# A frame costs the machine that measures a few milliseconds: one in a second.
FRAMES_PER_SECOND = 1.0
_NUMBERS: tuple[str, ...] = ("step", "vs eager", "first call", "memory", "numerics")
_WIDE = 72  # columns of a terminal that has room for what else was measured


class LiveTable:
    """The progress of a verb: call it with a line.

    `enter` is for the parts of a check, `show` for the state of a search.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self.is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._doing = ""
        self._state = SearchState()
        self._trials: Sequence[Trial] = ()
        self._seen_at = self._last = float("-inf")
        self._told: set[tuple[str, str, str]] = set()
        self._part: PartState | None = None
        self._begun_at = self._entered_at = 0.0
        self._terminal: TextIO | None = None  # if stderr is another for the moment
        self._relay: output_relay.OutputRelay | None = None

    def __call__(self, text: str) -> None:
        """What is going on at this moment."""
        if self._quiet:
            return
        with self._lock:
            self._doing = text
            if self.is_terminal:
                self._draw()
            elif time.monotonic() - self._last >= _PAUSE_S:
                self._say(text)

    def enter(self, part: PartState) -> None:
        """A part of a check begins; only a terminal shows it."""
        if self._quiet or not self.is_terminal:
            return
        with self._lock:
            self._entered_at = time.monotonic()
            if self._part is None:
                self._begun_at = self._entered_at
            self._part, self._doing = part, ""
            self._draw()

    def show(self, state: SearchState) -> None:
        """The trials so far, what runs, what is left."""
        if self._quiet:
            return
        with self._lock:
            self._trials = search_words.in_order(state.trials)
            self._state, self._seen_at = state, time.monotonic()
            if self.is_terminal:
                self._draw()
            else:
                for line in self._fresh_lines():
                    self._say(line)

    def end(self) -> None:
        """Leaves a terminal as it was found; lines stay."""
        with self._lock:
            live, self._live = self._live, None
            self._quiet = True
        if live is not None:
            live.stop()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Ends with the context. On a terminal, what processes print is above it."""
        with contextlib.ExitStack() as opened:
            if self.is_terminal and not self._quiet:
                terminal = output_relay.opened_again(sys.stderr)
                self._terminal = opened.enter_context(terminal)
                self._relay = output_relay.OutputRelay(self._write_above)
            opened.callback(self.end)
            if self._relay is not None:
                opened.enter_context(self._relay.relayed())
            yield

    def _write_above(self, text: str) -> None:
        with self._lock:
            if self._live is not None:
                self._live.console.out(text, highlight=False)
            else:
                print(text, file=self._terminal, flush=True)

    # -- lines -------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._last = time.monotonic()
        print(line(text), file=sys.stderr, flush=True)

    def _fresh_lines(self) -> Iterator[str]:
        """A line for each trial that has ended since; one for those made earlier."""
        fresh = []
        for trial in self._trials:
            key = (trial.name, trial.stage, trial.outcome)
            if key not in self._told:
                self._told.add(key)
                fresh.append(trial)
        before = sum(trial.resumed for trial in fresh)
        if before:
            yield f"{numbers.amount(before, 'trial')} of an earlier search taken over"
        for trial in fresh:
            if not trial.resumed:
                yield f"{_told(trial)}; {self._left()}"

    def _left(self) -> str:
        """`7 trials left, within 5 min 12 s`; empty before the first one has ended."""
        if not self._trials:
            return ""
        if not self._state.left:
            return "no trials left"
        rest = self._state.time_left_s - (time.monotonic() - self._seen_at)
        left = numbers.amount(self._state.left, "trial")
        return f"{left} left, within {numbers.duration(max(0.0, rest))}"

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

    # -- the table ---------------------------------------------------------------------

    def _draw(self) -> None:
        """Frames are drawn by a thread: Ctrl-C, which hits another, breaks none."""
        if self._live is not None:
            return
        from rich.live import Live

        self._live = Live(
            console=_console(self._terminal),
            get_renderable=self._frame,
            refresh_per_second=FRAMES_PER_SECOND,
            transient=True,
            redirect_stdout=False,  # the answer goes there
        )
        self._live.start()

    def _frame(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        def shown(text: str, style: str = "") -> Text:
            indent = " " * (len(text) - len(text.lstrip(" ")))
            return Text(indent + line(text), style, no_wrap=True, overflow="ellipsis")

        # Rich asks for a frame while it holds its own lock: the board's is not taken.
        trials, parts = self._trials, list[Any]()
        unfinished = self._relay.unfinished if self._relay is not None else []
        parts += [shown(Text.from_ansi(text).plain) for text in unfinished]
        if any(trial.is_ranked for trial in trials):
            parts.append(self._table(trials))
        if _columns() >= _WIDE and any(t.is_warm for t in _best(trials)):
            parts.append(shown("* with warm caches", "dim"))
        running = self._state.running
        if running and not (len(running) == 1 and self._doing.startswith(running[0])):
            parts.append(shown(f"running: {', '.join(running)}"))
        if self._doing:
            parts.append(shown(self._doing, "dim"))
        told = [self._part_text(), self._left(), *self._ended()]
        if status := "; ".join(filter(None, told)):
            parts.append(shown(status))
        return Group(*parts)

    def _ended(self) -> Iterator[str]:
        """`9 done, 2 of them not ranked`, and what they are ordered by."""
        if not self._trials:
            return
        unranked = sum(not trial.is_ranked for trial in self._trials)
        yield f"{len(self._trials)} done" + (
            f", {unranked} not ranked" if unranked else ""
        )
        yield f"by {search_words.objective(self._state.objective)}"

    def _table(self, trials: Sequence[Trial]) -> Table:
        """Where there is little room, names are cut and numbers are not."""
        from rich.table import Table

        best, columns = _best(trials), _columns()
        headers = _NUMBERS if columns >= _WIDE else _NUMBERS[:2]
        cells = [_cells(trial)[: len(headers)] for trial in best]
        sizes = [max(map(len, each)) for each in zip(headers, *cells, strict=True)]
        room = max(4, columns - sum(sizes) - 2 * len(sizes))
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("strategy", no_wrap=True, max_width=room)
        for name, size in zip(headers, sizes, strict=True):
            table.add_column(name, justify="right", no_wrap=True, width=size)
        leader = next((trial for trial in best if not trial.is_eager), None)
        for trial, each in zip(best, cells, strict=True):
            style = "bold" if trial is leader else ""
            table.add_row(line(trial.name), *each, style=style)
        return table


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        return 80


def _console(terminal: TextIO | None) -> Console:
    from rich.console import Console

    class Steady(Console):
        def show_cursor(self, show: bool = True) -> bool:
            return False

    return Steady(
        stderr=terminal is None,
        file=terminal,
        force_terminal=True,
        no_color="NO_COLOR" in os.environ,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _best(trials: Sequence[Trial]) -> list[Trial]:
    """The first of them, and eager wherever it stands."""
    ranked = [trial for trial in trials if trial.is_ranked]
    best = [trial for trial in ranked if not trial.is_eager][:MOST]
    return [trial for trial in ranked if trial.is_eager or trial in best]


def _cells(trial: Trial) -> tuple[str, ...]:
    return (
        numbers.milliseconds(trial.step_ms),
        "reference" if trial.is_eager else numbers.times(trial.vs_eager, None, None),
        search_words.first_call(trial),
        numbers.size(trial.peak_bytes),
        trial.verdict or numbers.UNKNOWN,
    )


def _told(trial: Trial) -> str:
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
