"""Compiles the frames of one model, each within the deadline, or lets them run eager.

Dynamo calls `Engine.convert` whenever it would compile a frame: at the first call of a
function, and whenever none of its compiled code fits. Tracing runs in the calling
thread and stops at the deadline; code generation runs in a child process, which is then
killed.
"""

from __future__ import annotations

import inspect
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, Literal

from torch import nn

from torchproof.process import forks
from torchproof.records import Namespace
from torchproof.runtime import (
    agreement,
    backend,
    compile_job,
    method_replacement,
    shared_code,
)
from torchproof.runtime.background import Background, Prepared, process_is_exiting
from torchproof.runtime.compile_job import DeadlinePassed
from torchproof.runtime.function_states import Claim, Function, Refusal, State
from torchproof.runtime.method_replacement import Options
from torchproof.runtime.recompile_storms import Storms, kind_of
from torchproof.runtime.status_report import EagerReason, Fallback
from torchproof.runtime.telemetry import Telemetry
from torchproof.torch_private import (
    class_guards,
    frames,
    process_groups,
    thread_state,
)

# How many background compilations of a function may stay unused. Without this limit, a
# model that changes all the time would compile all the time.
_TRIES = 4
# How often tracing of a function may be disturbed if callers wait for it.
_MOST_DISTURBED = 3
# Flags of functions whose call returns before their body has run.
_SUSPENDS = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
_IN_THIS_THREAD_ONLY = (
    "calls inside a function transform or a dispatch mode run eager with wait=False:"
    " only the calling thread could compile for them"
)
# Kinds of failures that do not concern the functions that the failed one calls.
_LEAVES_INNER = ("compile error", "unsupported")


@dataclass(frozen=True)
class CompiledCode:
    """Code compiled for a function; `again` if the function had code before."""

    code: CodeType
    answer: Any
    again: bool
    names: Namespace  # the function's globals


class Engine:
    """Compiles the functions of one model, from any thread that calls it."""

    def __init__(
        self,
        options: Options,
        telemetry: Telemetry,
        *,
        find_key: Callable[[], Hashable] = lambda: None,
        find_model: Callable[[], nn.Module | None] = lambda: None,
    ) -> None:
        """Models for which `find_key` returns the same may share compiled code.

        `find_model` returns None after the model was deleted.
        """
        self.options = options
        self.telemetry = telemetry
        self.graph_compiler = backend.GraphCompiler(self, options.compile_with)
        self.backend: shared_code.Backend | None = None  # until the first call
        self._origin = object()  # of the code that it compiles
        self._find_key = find_key
        self.find_model = find_model
        self.callbacks: list[frames.GuardedCallback] = []  # from Dynamo to here
        self._ran_others = False  # calls have run code of other models
        self._drops = shared_code.drops()
        self._functions: dict[CodeType, Function] = {}
        self.background = Background(self._prepare, telemetry.deliver)
        self.agreement: agreement.Agreement | None = None  # of several ranks
        self.has_collectives = False  # in a captured graph
        self.saving_ms: float | None = None  # per call, if a speed trial measured it
        # Called before each compilation, in the thread of the call; set by `load`.
        self.before_compiling: Callable[[], None] = lambda: None
        self._storms = Storms(options.recompile_limit or frames.recompile_limit())
        self._unproven: dict[str, CompiledCode] = {}  # graphs that have not run yet
        self._eager_answers: list[Any] = []  # compiled code with graphs that run eager
        # Of calls that have not ended: a graph that failed to compile, and its code.
        self._failed_graphs: list[tuple[int | None, Fallback, Any]] = []
        self._thread_call = threading.local()
        self._lock = forks.lock()
        self._raised = deque[int | None](maxlen=1000)  # numbers of calls that raised
        forks.register(self)

    def after_fork(self) -> None:
        """Only the thread that forked goes on compiling in the child."""
        for function in list(self._functions.values()):
            if function.claim is not None and not function.claim.is_mine:
                function.end_trace()

    def __str__(self) -> str:
        return self.telemetry.name

    def set_name(
        self, code: CodeType, name: str, *, decorator: str | None = None
    ) -> None:
        """Sets the name of a function that the strategy compiles.

        The code may be that of a `decorator` around it.
        """
        function = self._function(code)
        function.given_name, function.decorator = name, decorator or function.decorator

    def _function(self, code: CodeType) -> Function:
        function = self._functions.get(code)
        return function or self._functions.setdefault(code, Function(code))

    def name_of(self, code: CodeType) -> str:
        return self._function(code).name

    @property
    def is_compiling(self) -> bool:
        return any(function.claim for function in list(self._functions.values()))

    def note_graph(self, gm: Any) -> None:
        """Looks for collectives in a graph that Dynamo captured."""
        if process_groups.is_open() and process_groups.groups_in_graph(gm):
            self.has_collectives = True
        job = compile_job.current()
        if self.agreement is not None and job is not None:
            job.ranks |= self.agreement.ranks_in(gm)

    def graph_ran(self, name: str, failure: Fallback | None = None) -> None:
        """After a graph's first run: removes recompiled code that failed."""
        code = self._unproven.pop(name, None)
        if code is None:
            return
        if failure is None:
            frames.call_directly(code.answer, code.names)
        elif code.again:
            frames.invalidate(code.answer, f"{name} failed in its first run")
            self._function(code.code).refuse(Refusal(inner=False, item=failure))
        else:
            self._eager_answers.append(code.answer)

    # -- calls -------------------------------------------------------------------------

    def call_raised(self) -> None:
        """The call raised: removes refusals the model's own error may have caused."""
        call = self.telemetry.call
        removed = []
        with self._lock:
            self._raised.append(call)
            for function in list(self._functions.values()):
                if function.rejected_in == call:  # rightly
                    function.is_rejected = False
                refusal = function.refusal
                if refusal is None or refusal.call is None or refusal.call != call:
                    continue
                # The model does not cause a missed deadline or a recompile storm.
                if refusal.inner:
                    removed.append(refusal.item)
                    function.open()
        for number, item, answer in self._failed_graphs:
            if number == call is not None:
                removed.append(item)
                frames.invalidate(answer, "the model raised an error")
        self._failed_graphs = [e for e in self._failed_graphs if e[0] != call]
        if self.agreement is not None:
            self.agreement.call_raised(call)
        self.telemetry.remove(removed)
        self.telemetry.raised()  # the call returned no answer of compiled code

    def has_raised(self, call: int | None) -> bool:
        """Whether the call is known to have raised; False for no call."""
        with self._lock:
            return call is not None and call in self._raised

    def _until(self) -> tuple[float, bool]:
        """The current call's compile deadline, and whether it has passed.

        It never passes before the call's first compilation, so that a very short
        deadline is recorded as a missed one.
        """
        call = self.telemetry.call
        now = time.monotonic()
        current = self._thread_call
        if call is None or getattr(current, "call", None) != call:
            current.call = call
            current.until = now + self.options.deadline_s
            return current.until, False
        return current.until, now >= current.until

    # -- frames ------------------------------------------------------------------------

    def convert(self, conversion: frames.Conversion) -> Any:
        """Dynamo's answer for a frame: compiled code, or eager."""
        if conversion.is_trivial():
            return conversion.run()
        if compile_job.current() is not None:
            # A backend or a log handler calls a model while another one compiles. A
            # second compilation here would deadlock with the first.
            self.telemetry.ran_eager("compiling")
            return frames.eager_once(inner=False)
        function = self._function(conversion.code)
        function.raise_now()
        until, is_over = self._until()
        refusal = self._refusal(function)
        # AOTAutograd has no code for forward-mode differentiation.
        runs_eager = refusal is not None or class_guards.is_forward_ad_on()
        if runs_eager or is_over or function.is_paused(self.telemetry.calls):
            why: EagerReason = "fallback" if refusal or is_over else "unsupported"
            self.telemetry.ran_eager(why)
            return frames.eager_once(inner=refusal is not None and refusal.inner)
        if self._lookup_missed_code(conversion):
            self.telemetry.ran_eager("compiling")
            return frames.eager_once(inner=False)
        shared_code.free_unused()
        self.before_compiling()
        method_replacement.refresh_all()
        if self.options.wait or function.unused >= _TRIES:
            with self.telemetry.stall():
                return self._compile_once(conversion, until)
        prepared = self.background.prepared(conversion)
        if self._waits_for_another(function, prepared):
            self.telemetry.ran_eager("compiling")
            return frames.eager_once(inner=False)
        if prepared is None:
            return self._eager_meanwhile(conversion)
        with self.telemetry.stall():
            answer = self._compile_once(conversion, until, prepared.job)
        self.background.forget(conversion.code, prepared)
        return answer

    def _waits_for_another(self, function: Function, prepared: Prepared | None) -> bool:
        """Whether to run eager because another thread compiles, perhaps for minutes.

        Torch compiles one thing at a time. Calls do wait while one of them traces this
        model: it is soon done, and they could change what it traces.
        """
        if not thread_state.another_thread_compiles():
            return False
        if prepared is None:
            # FX replaces methods of nn.Module for all threads while it traces, so that
            # code may only seem not to fit.
            return self._storms.has_compiled(function.code) or function.unused > 0
        return not self.is_compiling

    def _refusal(self, function: Function) -> Refusal | None:
        """Why a function is not compiled, from an earlier call or decided here."""
        code = function.code
        refusal = function.refusal
        if refusal is None and code.co_flags & _SUSPENDS:
            # Dynamo of torch 2.13 compiles coroutines, and the process crashes later.
            why = "torch does not compile coroutines and generators"
            item = Fallback("unsupported", self.name_of(code), why)
            refusal = self._refuse(code, item, self.telemetry.call)
        return refusal or self._storm(code)

    def _eager_meanwhile(self, conversion: frames.Conversion) -> Any:
        try:
            if not self.background.begin(conversion, self.telemetry.call):
                self.telemetry.note(_IN_THIS_THREAD_ONLY)
        except RuntimeError as error:  # the system allows no further thread
            failed = backend.failure(self.name_of(conversion.code), error, None)
            self._refuse(conversion.code, failed, self.telemetry.call)
            return frames.eager_once(inner=False)
        self.telemetry.ran_eager("compiling")
        return frames.eager_once(inner=False)

    def _prepare(
        self, conversion: frames.Conversion, call: int | None
    ) -> Prepared | None:
        """Compiles in the background, for later calls.

        Guards contain values of the moment of tracing, and the caller may change the
        model at any time. So the call that uses this compilation is traced again.
        """
        code = conversion.code
        until = time.monotonic() + self.options.deadline_s
        job = compile_job.Job(
            until,
            codegen_in_child=self.options.codegen_in_child,
            uses_graph_cache=True,
            in_background=True,
            call=call,
            backward_early=True,
            compiler=self.graph_compiler,
        )
        try:
            job.generalise = self._generalises(conversion, self._cause(conversion))
            answer = compile_job.convert(conversion, job)
        except (Exception, DeadlinePassed) as error:
            if not process_is_exiting.is_set():  # else nobody is left to report to
                self._preparation_failed(code, error, job)
            return None
        finally:
            self.telemetry.add_compile_time(job.seconds)
        if job.failure is not None:
            refusal = Refusal(inner=not job.missed_deadline, item=job.failure)
            self._function(code).refuse(refusal)
            return None
        if job.ranks:
            why = "wait=False: ranks would begin to use code with collectives at"
            why = f"{why} different calls; use wait=True"
            self._refuse(code, Fallback(agreement.KIND, self.name_of(code), why), call)
            return None
        job.preparation_s = job.seconds
        self._function(code).unused += 1
        return Prepared(answer, job)

    def _preparation_failed(
        self, code: CodeType, error: BaseException, job: compile_job.Job
    ) -> None:
        """Keeps what the next call has to know of an error in the background."""
        if isinstance(backend.root_cause(error), backend.Rejected):
            return
        if self._is_break(error):
            self._function(code).raise_later(error.with_traceback(None))
        elif not self._try_later(code, error):
            failed = backend.failure(self.name_of(code), error, job)
            self._refuse(code, self._for_the_frame(failed, job), job.call)

    def _compile_once(
        self,
        conversion: frames.Conversion,
        until: float,
        prepared: compile_job.Job | None = None,
    ) -> Any:
        """Compiles a function in one thread; others wait meanwhile and run eager once.

        They would compile the same code again, and a call that runs while the model is
        traced may change what is traced. A signal handler that calls the model in the
        compiling thread does not wait for itself.
        """
        code = conversion.code
        function, own_claim = self._function(code), Claim()
        try:
            with self._lock:
                claim = function.claim
                if claim is None:
                    function.trace(own_claim)
            if claim is not None:
                if not claim.is_mine:
                    claim.done.wait(compile_job.seconds_until(until))
                self.telemetry.ran_eager("compiling")
                return frames.eager_once(inner=False)
            if code in self._codes_of_others and self.telemetry.compiled_calls > 1:
                self._ran_others = True
            self._check_key()
            return self._compile(conversion, until, prepared)
        finally:
            with self._lock:
                if function.claim is own_claim:
                    function.end_trace()
            own_claim.done.set()

    def _compile(
        self,
        conversion: frames.Conversion,
        until: float,
        prepared: compile_job.Job | None,
    ) -> Any:
        code = conversion.code
        job = self._job(until, prepared)
        name = self.name_of(code)
        ballot = None
        if self.agreement is not None:
            ballot = self.agreement.begin(code, name)
        function = self._function(code)
        job.checks_types = not function.is_rejected
        try:
            cause = self._cause(conversion)
            shapes = conversion.shapes()
            job.generalise = self._generalises(conversion, cause)
            answer = compile_job.convert(conversion, job)
        except (Exception, DeadlinePassed) as error:
            # Not bound to a name: this frame would keep the error alive.
            if backend.comes_from_signal_handler(error):
                raise backend.root_cause(error) from None
            if isinstance(backend.root_cause(error), backend.NotPrepared):
                return self._eager_meanwhile(conversion)
            if self.agreement is not None and ballot is not None:
                self.agreement.object(ballot, backend.failure(name, error, job))
            if self._is_break(error):
                raise error.with_traceback(None) from error.__cause__
            return self._eager_after(code, error, job, prepared)
        finally:
            self.telemetry.add_compile_time(job.seconds)
        self.telemetry.broke_at(job.breaks)
        function.unused -= prepared is not None
        function.disturbed = 0
        if ballot and (refusal := self._refused_by_ranks(code, job, ballot)):
            return frames.eager_once(inner=refusal.inner)
        if frames.is_compiled_code(answer):
            if conversion.constants:  # another model may have others
                self.share_no_code()
            self._store(code, answer, graphs=len(job.compiled))
            self._storms.note(code, cause, job.preparation_s + job.seconds)
        if job.compiled:
            self.telemetry.compiled(job.compilation(name, shapes, cause=cause))
            self._expect_first_run(conversion, answer, job, again=cause is not None)
        elif function.given_name and not job.failed:
            self.telemetry.note(self._why_no_graph(function, job))
        return self._accept(code, answer, job, cause=cause)

    def _eager_after(
        self,
        code: CodeType,
        error: BaseException,
        job: compile_job.Job,
        prepared: compile_job.Job | None,
    ) -> Any:
        """Runs eager after a compilation that failed, and records why."""
        if self._try_later(code, error):
            self._function(code).unused -= prepared is not None
            self.telemetry.ran_eager("compiling")
            return frames.eager_once(inner=False)
        if isinstance(backend.root_cause(error), backend.Rejected):
            function = self._function(code)
            function.is_rejected, function.rejected_in = True, self.telemetry.call
            self.telemetry.ran_eager("fallback")  # if it does not raise
            return frames.eager_once(inner=False)
        failed = backend.failure(self.name_of(code), error, job)
        failed = self._for_the_frame(failed, job)
        self._refuse(code, failed, self.telemetry.call)
        # What it calls may be compiled from the next call on: if the model itself
        # raises in this one, that would be in vain.
        return frames.eager_once(inner=failed.kind == "unsupported")

    def _job(self, until: float, prepared: compile_job.Job | None) -> compile_job.Job:
        job = compile_job.Job(
            until,
            codegen_in_child=self.options.codegen_in_child,
            backward_early=not self.options.wait,
            compiler=self.graph_compiler,
        )
        if prepared is not None:
            job.uses_graph_cache = True
            job.use(prepared)
        return job

    def _why_no_graph(self, function: Function, job: compile_job.Job) -> str:
        what = function.name
        if function.decorator is not None:
            what = f"{function.decorator}, the decorator of {what},"
        if job.breaks:
            return (
                f"{what} has no compiled graph before its first graph break: only what"
                " it calls, and the rest of it, may have"
            )
        return f"{what} itself has no compiled graph: only what it calls may have"

    def _store(self, code: CodeType, answer: Any, *, graphs: int) -> None:
        assert self.backend is not None
        item = shared_code.StoredCode(code, answer, graphs, self._origin)
        self.backend.stored.append(item)

    def _for_the_frame(self, item: Fallback, job: compile_job.Job) -> Fallback:
        """The reason for a whole frame, in place of the one for a graph of it.

        A graph that missed the deadline leaves the frame little time. If the frame then
        misses it too, the graph is never used, and its phase is what took so long.
        """
        if not job.missed_deadline or item.kind != "deadline" or job.failure is None:
            return item
        self.telemetry.remove([job.failure])
        return replace(item, phase=job.failure.phase)

    def _expect_first_run(
        self,
        conversion: frames.Conversion,
        answer: Any,
        job: compile_job.Job,
        *,
        again: bool,
    ) -> None:
        compiled = CompiledCode(
            code=conversion.code,
            answer=answer,
            again=again,
            names=conversion.frame.f_globals,
        )
        self._unproven |= dict.fromkeys(job.compiled, compiled)

    def _refused_by_ranks(
        self, code: CodeType, job: compile_job.Job, ballot: agreement.Ballot
    ) -> Refusal | None:
        """Refuses the function if a rank with which this one agrees runs it eager."""
        assert self.agreement is not None
        if job.failed and job.failure is not None:
            # Here, only the graphs that failed run eager.
            self.agreement.object(ballot, job.failure)
            return None
        objection = self.agreement.agree(ballot, job.ranks, until=job.until)
        if objection is None:
            return None
        item = Fallback(agreement.KIND, self.name_of(code), str(objection))
        inner = objection.kind in _LEAVES_INNER
        return self._refuse(code, item, self.telemetry.call, inner=inner)

    def _accept(
        self, code: CodeType, answer: Any, job: compile_job.Job, *, cause: str | None
    ) -> Any:
        """The answer; eager if no graph compiled and earlier code of the function did.

        Dynamo tries the newest code first, and it would take calls from the earlier
        code that does have compiled graphs.
        """
        all_failed = bool(job.failed and not job.compiled)
        fails_again = job.missed_deadline or (all_failed and cause is not None)
        if job.failure is not None and fails_again:
            # Another compilation would fail, or take as long, again.
            self._function(code).refuse(Refusal(inner=False, item=job.failure))
        if all_failed and cause is not None:
            self.telemetry.ran_eager("fallback")
            return frames.eager_once(inner=False)
        if job.failed:
            self._eager_answers.append(answer)
        failure = job.failure if frames.is_compiled_code(answer) else None
        if failure is not None and failure.kind in _LEAVES_INNER:
            self._failed_graphs.append((self.telemetry.call, failure, answer))
            del self._failed_graphs[:-_TRIES]
        return answer

    def _refuse(
        self,
        code: CodeType,
        item: Fallback,
        call: int | None,
        *,
        inner: bool | None = None,
    ) -> Refusal:
        """Stops compiling a function in this process; its existing code stays in use.

        If the call has raised, the model itself may have failed, and nothing is stored.
        """
        item = replace(item, partial=self._storms.has_compiled(code))
        if inner is None:
            inner = item.kind in _LEAVES_INNER
        refusal = Refusal(inner=inner, item=item, call=call)
        with self._lock:
            if call is not None and call in self._raised:
                return refusal
            self._function(code).refuse(refusal)
        self.telemetry.fell_back(item)
        self.telemetry.ran_eager("fallback")
        return refusal

    def _is_break(self, error: BaseException) -> bool:
        """Whether the caller gets the error: it is a graph break, with `fullgraph`."""
        return self.options.fullgraph and frames.is_graph_break(error)

    def _try_later(self, code: CodeType, error: BaseException) -> bool:
        """Whether a failed compilation is tried again, after twice as many calls.

        Another thread may have changed the model while it was traced. With several
        ranks nothing is tried again: the objection to the first time stands.
        """
        if self.agreement is not None or not backend.was_disturbed(error):
            return False
        function = self._function(code)
        if self.options.wait and function.disturbed >= _MOST_DISTURBED:
            return False  # each time, a caller waits
        function.pause(self.telemetry.calls)
        self.telemetry.note(
            f"tracing {function.name} failed, probably because what it reads"
            " changed meanwhile: later calls try again"
        )
        return True

    @property
    def pending(self) -> tuple[str, ...]:
        """The functions that are being compiled in the background."""
        return tuple(map(self.name_of, self.background.pending))

    @property
    def has_prepared(self) -> bool:
        """Whether a later call may use what was compiled in the background."""
        prepared = map(self._function, self.background.unused)
        return any(function.state is not State.REFUSED for function in prepared)

    # -- recompiling -------------------------------------------------------------------

    def _storm(self, code: CodeType) -> Refusal | None:
        """Stops compiling a function that keeps recompiling."""
        saved_s = None
        if self.saving_ms is not None:
            saved_s = self.saving_ms / 1e3 * self.telemetry.compiled_calls
        why = self._storms.why_stop(code, saved_s)
        if why is None:
            return None
        if self.options.fullgraph:
            raise frames.recompile_limit_error(f"{self.name_of(code)}: {why}")
        item = Fallback("storm", self.name_of(code), why)
        return self._refuse(code, item, self.telemetry.call)

    def _generalises(self, conversion: frames.Conversion, cause: str | None) -> bool:
        code = conversion.code
        if cause is None or not self._storms.generalises(code, cause):
            return False
        is_static = conversion.is_marked_static(cause)
        what = "from now on this value is dynamic"
        if is_static:
            what = "mark_static keeps this value from becoming dynamic"
        self.telemetry.note(
            f"{self.name_of(code)} recompiled repeatedly because of {kind_of(cause)}:"
            f" {what}"
        )
        return not is_static

    def _cause(self, conversion: frames.Conversion) -> str | None:
        """Why no existing compiled code fits; None if there is none."""
        if conversion.entry is None or not self._storms.has_compiled(conversion.code):
            return None
        reason = conversion.reason() or "no compiled code fits"
        # The reason reads "0/0: the guard      # its origin", then lines with hints.
        guard = re.sub(r"^\d+/\d+: ", "", reason.splitlines()[0])
        return re.split(r"\s{2,}#", guard)[0].strip()

    def retry(self) -> None:
        """Forgets what failed, so that the next call compiles it again."""
        while self._eager_answers:
            frames.invalidate(
                self._eager_answers.pop(), "torchproof.retry compiles it again"
            )
        for function in list(self._functions.values()):
            if function.state in (State.REFUSED, State.PAUSED):
                function.open()
            function.disturbed = 0
        self._storms.forget()

    # -- sharing -----------------------------------------------------------------------

    def choose_backend(self) -> shared_code.Backend:
        """The backend, which the first call decides: that of all models alike."""
        if self.backend is None:
            self.backend = shared_code.backend_of(self, self._find_key())
        return self.backend

    @property
    def shares_code(self) -> bool:
        """Whether another model may use what this one compiles."""
        return self.backend is not None and self.backend.key is not None

    def use_backend(self, backend: shared_code.Backend) -> None:
        """Uses no code of the earlier backend any more, from the next call on."""
        self.backend = backend
        for callback in self.callbacks:
            callback.change_backend(backend)

    def share_no_code(self) -> None:
        """From now on, only this model uses what it compiles, and nothing else."""
        if self.backend is not None and self.shares_code:
            self._ran_others = self.others_code == "runs"
            shared_code.send_others_away(self, self.backend)

    def _check_key(self) -> None:
        """Before a compilation: settings or weights may have changed since the last."""
        if self.shares_code and self._find_key() != self.choose_backend().key:
            self.share_no_code()

    def drop_code(self) -> None:
        """Frees the code, which may be wrong, for all models that use it."""
        if self.backend is not None:
            self.backend.drop_code()

    def _lookup_missed_code(self, conversion: frames.Conversion) -> bool:
        """Whether existing code fits: Dynamo missed it because other code was deleted.

        It moves deleted code to the end of the list that a lookup may be going through.
        """
        drops, self._drops = self._drops, shared_code.drops()
        return drops != self._drops and conversion.has_code()

    @property
    def _codes_of_others(self) -> set[CodeType]:
        """Functions that have code of other models, and none that this one compiled."""
        stored = [] if self.backend is None else list(self.backend.stored)
        others = [item for item in stored if item.origin is not self._origin]
        if not any(item.graphs for item in others):
            return set()
        own = {item.code for item in stored if item.origin is self._origin}
        return {item.code for item in others} - own

    @property
    def others_code(self) -> Literal["runs", "may run"] | None:
        """Whether calls run code that was compiled for other models."""
        if self._ran_others:
            return "runs"
        codes = self._codes_of_others if self.telemetry.compiled_calls else set()
        if not codes:
            return None
        named = any(self._function(code).given_name for code in codes)
        return "runs" if named else "may run"

    def close(self) -> None:
        """Its model has been deleted."""
        self._eager_answers.clear()
        self._unproven.clear()
        self.graph_compiler.graph_cache.close()
        self.callbacks.clear()
        if self.backend is not None:
            shared_code.leave(self, self.backend)
