"""Compiles the frames of one model, each within the deadline, or lets them run eager.

Dynamo asks `Engine.convert` whenever it would compile a frame: at the first call of a
function and whenever none of its compiled code fits. Tracing runs in a helper thread,
code is generated in a child process; the caller waits for both until the deadline and
no longer.
"""

from __future__ import annotations

import inspect
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from torchproof.process import forks
from torchproof.runtime import (
    backend,
    compile_job,
    interruptible_thread,
    method_replacement,
)
from torchproof.runtime.background import Background, Prepared
from torchproof.runtime.frame_conversion import carried_out
from torchproof.runtime.recompile_storms import Storms, kind_of
from torchproof.runtime.status_report import Compilation, Fallback
from torchproof.runtime.telemetry import Telemetry
from torchproof.torch_private import class_guards, frames, thread_state

# How much of what was compiled behind the calls may be of no use to them: a model that
# changes all the time would be compiled all the time.
_TRIES = 4
# Flags of code whose calls end before it has run.
_SUSPENDS = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
# Kinds of failures of a function that say nothing about those it calls.
_LEAVES_INNER = ("compile error", "unsupported")


@dataclass(frozen=True)
class Refusal:
    """A function that is not compiled again; `inner` ones may still be."""

    inner: bool
    item: Fallback
    call: int | None = None  # in which it was decided, if in one


@dataclass(frozen=True)
class Made:
    """Compiled code: of which function, and whether that had been compiled before.

    `names` are the function's globals.
    """

    code: CodeType
    answer: Any
    again: bool
    names: dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """A function that a thread has compiled; `done` is set when that has ended."""

    done: threading.Event = field(default_factory=threading.Event)
    thread: int = field(default_factory=threading.get_ident)

    @property
    def is_mine(self) -> bool:
        return self.thread == threading.get_ident()


@dataclass(frozen=True)
class Settings:
    """`ships` says that code is generated in a child."""

    deadline_s: float
    recompile_limit: int
    wait: bool
    ships: bool


class Engine:
    """Everything that is compiled for one model, in whatever thread that calls it."""

    def __init__(
        self, settings: Settings, telemetry: Telemetry, arguments: Mapping[str, Any]
    ) -> None:
        self.settings = settings
        self.telemetry = telemetry
        self.backend = backend.Backend(self, arguments)
        self.refused: dict[CodeType, Refusal] = {}
        self.background = Background(self._prepare, telemetry.deliver)
        self.saving_ms: float | None = None  # of a call, where that was measured
        self._storms = Storms(settings.recompile_limit)
        self._names: dict[CodeType, str] = {}
        self._unproven: dict[str, Made] = {}  # graphs that have not run yet
        self._answers: list[Any] = []  # all code
        self._eager_answers: list[Any] = []  # code in which graphs run eager
        self._here = threading.local()
        self._lock = forks.lock()
        self._under_way: dict[CodeType, Claim] = {}
        self._unused = Counter[CodeType]()  # of what was compiled behind the calls
        self._raised = deque[int | None](maxlen=1000)  # the latest calls that did
        forks.register(self)

    def after_fork(self) -> None:
        """Only the thread that forked goes on with what it was compiling."""
        kept = {c: claim for c, claim in self._under_way.items() if claim.is_mine}
        self._under_way = kept

    def __str__(self) -> str:
        return self.telemetry.name

    def call_it(self, code: CodeType, name: str) -> None:
        """Names a function that was asked to be compiled."""
        self._names[code] = name

    def name_of(self, code: CodeType) -> str:
        return self._names.get(code) or frames.describe_code(code)

    @property
    def deadline_s(self) -> float:
        return self.settings.deadline_s

    # -- what the backend tells --------------------------------------------------------

    def graph_compiled(self, item: Compilation) -> None:
        self.telemetry.spent(item.seconds)
        self.telemetry.compiled(item)

    def graph_failed(self, item: Fallback) -> None:
        self.telemetry.fell_back(item)

    def graph_ran(self, name: str, failure: Fallback | None = None) -> None:
        """A graph's first run: what was compiled again and fails stands aside."""
        made = self._unproven.pop(name, None)
        if made is None:
            return
        if failure is None:
            frames.call_directly(made.answer, made.names)
        elif made.again:
            frames.invalidate(made.answer, f"{name} failed in its first run")
            self.refused[made.code] = Refusal(inner=False, item=failure)
        else:
            self._eager_answers.append(made.answer)

    def ran_eager(self) -> None:
        self.telemetry.ran_eager()

    # -- calls -------------------------------------------------------------------------

    def call_raised(self) -> None:
        """The call ended in an error: what failed in it may have been the model."""
        call, withdrawn = self.telemetry.call, []
        with self._lock:
            self._raised.append(call)
            for code, refusal in list(self.refused.items()):
                # A deadline or a storm is nobody's error.
                if refusal.call == call is not None and refusal.inner:
                    withdrawn.append(self.refused.pop(code).item)
        self.telemetry.withdraw(withdrawn)
        self.telemetry.ran_eager()  # whatever ran, it gave no compiled answer

    def _until(self) -> tuple[float, bool]:
        """When the call under way has to be done with compiling; whether it is over.

        Never before its first attempt, so that a deadline too short for anything is
        recorded as one that was missed.
        """
        call, now = self.telemetry.call, time.monotonic()
        if call is None or getattr(self._here, "call", None) != call:
            self._here.call = call
            self._here.until = now + self.deadline_s
            return self._here.until, False
        return self._here.until, now >= self._here.until

    # -- frames ------------------------------------------------------------------------

    def convert(self, conversion: frames.Conversion) -> Any:
        """What a frame shall run: compiled code, or what it is, eager."""
        if conversion.is_trivial():
            return conversion.run()
        if compile_job.current() is not None:
            # A backend, a log handler or the like calls a model while it compiles one:
            # a second compilation would wait for the first, which waits for it.
            self.ran_eager()
            return frames.eager_once(inner=False)
        until, is_over = self._until()
        refusal = self._refusal(conversion.code)
        # AOTAutograd has no code for forward-mode differentiation.
        runs_eager = refusal is not None or class_guards.differentiates_forward()
        if runs_eager or is_over:
            self.ran_eager()
            return frames.eager_once(inner=refusal is not None and refusal.inner)
        method_replacement.look_again()
        state = thread_state.ThreadState()
        if self.settings.wait or self._unused[conversion.code] >= _TRIES:
            return self._compile_once(conversion, state, until)
        prepared = self.background.prepared(conversion)
        if prepared is None:
            return self._eager_meanwhile(conversion, state)
        answer = self._compile_once(conversion, state, until, prepared.job)
        self.background.forget(conversion.code, prepared)
        return answer

    def _refusal(self, code: CodeType) -> Refusal | None:
        """Why a function is not compiled, decided before or here."""
        refusal = self.refused.get(code)
        if refusal is None and code.co_flags & _SUSPENDS:
            # Dynamo of torch 2.13 compiles coroutines, and the process crashes later.
            why = "torch compiles no coroutines and generators"
            item = Fallback("unsupported", self.name_of(code), why)
            refusal = self._refuse(code, item, self.telemetry.call)
        return refusal or self._storm(code)

    def _eager_meanwhile(
        self, conversion: frames.Conversion, state: thread_state.ThreadState
    ) -> Any:
        self.background.begin(conversion, state, self.telemetry.call)
        self.ran_eager()
        return frames.eager_once(inner=False)

    def _prepare(
        self,
        conversion: frames.Conversion,
        state: thread_state.ThreadState,
        call: int | None,
    ) -> Prepared | None:
        """Compiles behind a call, for later ones.

        Guards have the values of the moment that they are made in, and the caller may
        change the model at any time: so the one that is to use this is traced again.
        """
        code = conversion.code
        until = time.monotonic() + self.deadline_s
        job = compile_job.Job(until, ships=self.settings.ships, is_shelving=True)
        job.behind = job.ahead = True
        job.generalise = self._generalises(code, self._cause(conversion))
        try:
            answer = carried_out(conversion, state, job, self.telemetry)
        except (Exception, interruptible_thread.GivenUp) as error:
            if interruptible_thread.process_ends.is_set():
                raise  # nobody is left to be told
            self._refuse(code, backend.failure(self.name_of(code), error, job), call)
            return None
        finally:
            self.telemetry.spent(job.seconds)
        if job.failure is not None:
            self.refused[code] = Refusal(inner=not job.missed, item=job.failure)
            return None
        job.earlier_s = job.seconds
        self._unused[code] += 1
        return Prepared(answer, job)

    def _compile_once(
        self,
        conversion: frames.Conversion,
        state: thread_state.ThreadState,
        until: float,
        prepared: compile_job.Job | None = None,
    ) -> Any:
        """Threads that come meanwhile wait, and run eager once.

        Each would compile the same again; and what runs while a model is traced may
        change what it is traced for. A signal handler that calls the model, in the
        thread that has it compiled, does not wait for itself.
        """
        code, mine = conversion.code, Claim()
        with self._lock:
            claim = self._under_way.setdefault(code, mine)
        if claim is not mine:
            if not claim.is_mine:
                claim.done.wait(interruptible_thread.seconds_until(until))
            self.ran_eager()
            return frames.eager_once(inner=False)
        try:
            return self._compile(conversion, state, until, prepared)
        finally:
            with self._lock:
                del self._under_way[code]
            mine.done.set()

    def _compile(
        self,
        conversion: frames.Conversion,
        state: thread_state.ThreadState,
        until: float,
        prepared: compile_job.Job | None,
    ) -> Any:
        code, job = conversion.code, compile_job.Job(until, ships=self.settings.ships)
        job.ahead = not self.settings.wait
        if prepared is not None:
            job.is_shelving = True
            job.use(prepared)
        name = self.name_of(code)
        try:
            cause, shapes = self._cause(conversion), conversion.shapes()
            job.generalise = self._generalises(code, cause)
            answer = carried_out(conversion, state, job, self.telemetry)
        except (Exception, interruptible_thread.GivenUp) as error:
            if interruptible_thread.process_ends.is_set() or job.is_left:
                raise  # nobody is left to be told
            if isinstance(backend.root_cause(error), backend.NotPrepared):
                return self._eager_meanwhile(conversion, state)
            failed = backend.failure(name, error, job)
            refusal = self._refuse(code, failed, self.telemetry.call)
            return frames.eager_once(inner=refusal.inner)
        finally:
            self.telemetry.spent(job.seconds)
        self._unused[code] -= prepared is not None
        if frames.is_compiled_code(answer):
            self._answers.append(answer)
            self._storms.note(code, cause, job.earlier_s + job.seconds)
        if job.compiled:
            self.telemetry.compiled(job.compilation(name, shapes, cause=cause))
            made = Made(code, answer, cause is not None, conversion.frame.f_globals)
            self._unproven |= dict.fromkeys(job.compiled, made)
        elif code in self._names and not job.failed:
            self.telemetry.note(f"nothing of {name} itself is compiled")
        return self._kept(code, answer, job, cause=cause)

    def _kept(
        self, code: CodeType, answer: Any, job: compile_job.Job, *, cause: str | None
    ) -> Any:
        """The answer, unless nothing in it is compiled and there is code that is.

        New code stands before that, and would take calls from it that it can run.
        """
        worthless = bool(job.failed and not job.compiled)
        fails_again = job.missed or (worthless and cause is not None)
        if job.failure is not None and fails_again:
            # Another guard, another attempt: it would fail, or take as long, again.
            self.refused[code] = Refusal(inner=False, item=job.failure)
        if worthless and cause is not None:
            self.ran_eager()
            return frames.eager_once(inner=False)
        if job.failed:
            self._eager_answers.append(answer)
        return answer

    def _refuse(self, code: CodeType, item: Fallback, call: int | None) -> Refusal:
        """Not again in this process; what is compiled already goes on to be used.

        Unless the call that it was for has raised: then the model may have failed.
        """
        refusal = Refusal(inner=item.kind in _LEAVES_INNER, item=item, call=call)
        with self._lock:
            if call is not None and call in self._raised:
                return refusal
            self.refused[code] = refusal
        self.telemetry.fell_back(item)
        self.ran_eager()
        return refusal

    @property
    def pending(self) -> tuple[str, ...]:
        """What is being compiled behind the calls."""
        return tuple(map(self.name_of, self.background.pending))

    # -- recompiling -------------------------------------------------------------------

    def _storm(self, code: CodeType) -> Refusal | None:
        """Ends the compiling of a function that does not settle."""
        saved_s = None
        if self.saving_ms is not None:
            saved_s = self.saving_ms / 1e3 * self.telemetry.compiled_calls
        why = self._storms.why_stop(code, saved_s)
        if why is None:
            return None
        item = Fallback("storm", self.name_of(code), why)
        return self._refuse(code, item, self.telemetry.call)

    def _generalises(self, code: CodeType, cause: str | None) -> bool:
        if cause is None or not self._storms.generalises(code, cause):
            return False
        self.telemetry.note(
            f"{self.name_of(code)} was compiled again and again because of"
            f" {kind_of(cause)}: compiled as something that varies from here on"
        )
        return True

    def _cause(self, conversion: frames.Conversion) -> str | None:
        """Why compiled code that is there does not fit; None where none is there."""
        if conversion.entry is None or not self._storms.has_compiled(conversion.code):
            return None
        reason = conversion.reason() or "no compiled code fitted"
        # "0/0: the guard      # where it comes from", and hints on further lines.
        guard = re.sub(r"^\d+/\d+: ", "", reason.splitlines()[0])
        return re.split(r"\s{2,}#", guard)[0].strip()

    def retry(self) -> None:
        """Forgets what failed, so that the next call compiles it again."""
        while self._eager_answers:
            frames.invalidate(self._eager_answers.pop(), "it is to be compiled again")
        self.refused.clear()
        self._storms.forget()

    def close(self) -> None:
        """Its model is gone: code that only it can use is not kept for ever."""
        while self._answers:
            frames.invalidate(self._answers.pop(), "its model is gone")
        self._eager_answers.clear()
        self._unproven.clear()
        self.backend.shelf.clear()
