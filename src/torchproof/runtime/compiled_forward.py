"""`CompiledForward`: the callable that replaces a model's `forward`.

It lies in the module's own `__dict__`, so the module's class, state, hooks and other
methods do not change. Copies and pickles of the module contain it too, and compile at
their own first call. Regions of the model get a `MethodReplacement` each.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from types import MethodType
from typing import Any, Literal

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from torchproof.process import forks
from torchproof.records import JsonObject, MissingHook, untested_torch
from torchproof.runtime import agreement, compile_job, recipe_following, shared_code
from torchproof.runtime.backend import one_line
from torchproof.runtime.engine import Engine
from torchproof.runtime.graph_replay import GraphReplayer, graphed
from torchproof.runtime.method_replacement import (
    BlockForward,
    MethodReplacement,
    Options,
    method_of,
)
from torchproof.runtime.status_report import (
    EagerReason,
    Fallback,
    State,
    Status,
    cost_to_log,
    nothing_compiled,
)
from torchproof.runtime.telemetry import Telemetry, counts_calls
from torchproof.strategies import (
    BLOCKS,
    TUNE_HINT,
    Adoption,
    RecipeSource,
    Site,
    Strategy,
    Varying,
    parse,
)
from torchproof.torch_private import backends, frames, stances

_REPLICAS = (
    "nn.DataParallel copies the model to each GPU at every call, and copies are not"
    " compiled; use DistributedDataParallel"
)


class CompiledForward(MethodReplacement):
    """Replaces the model's `forward`: counts calls and applies the strategy."""

    _is_complete = False  # its own `__init__` goes on

    def __init__(
        self,
        owner: nn.Module | None,
        name: str,
        plain: Any = None,
        options: Options | None = None,
    ) -> None:
        super().__init__(owner, name, plain)
        assert options is not None
        self.options = options
        title = getattr(self, "__name__", "") if owner is None else type(owner).__name__
        self.telemetry = Telemetry(title, options.on_event)
        # The engine keeps the telemetry, and must not keep the model.
        self.telemetry.cost = functools.partial(_cost_to_log, weakref.ref(self))
        self.strategy = options.strategy
        self.why = options.why
        self.worth: JsonObject | None = None  # the speed trial
        self.pack: JsonObject | None = None  # set by `torchproof.load`
        self.adoption = Adoption()
        self._plan = recipe_following.plan_of(options.recipe)
        self._replayer: GraphReplayer | None = None
        self._engine: Engine | None = None
        self._agreement: agreement.Agreement | None = None
        self._has_joined = False  # or there are no other ranks
        self.disabled_by: str | None = None  # the setting that stops torch
        self._is_trial = False  # its calls belong to a speed trial
        self._parts: list[MethodReplacement] = []
        self._switch_lock = forks.rlock()  # one thread at a time switches parts
        self._first_call_lock = forks.rlock()
        self.compiled: Callable[..., Any] | None = None
        self.rebuild = self._rebuild_all
        self._initialised = True
        self.run = self._first_call

    @counts_calls
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            # An outer compilation traces this call. It would guard on the counters.
            return self.__wrapped__(*args, **kwargs)
        run, owner, method, numbers, undelivered, stance, unset = self._per_call
        if type(owner).forward is not method:
            run = self.refresh_method()
        number = next(numbers)  # noqa: F841 - `Telemetry.call` reads it
        try:
            if stance._stance is not unset:
                return self._run_under_stance(run, args, kwargs)
            # Most calls have no keywords, and passing none on takes time too.
            return run(*args, **kwargs) if kwargs else run(*args)
        except BaseException as error:
            if not self._runs_eager_after(error):
                raise
            return self.run_eager(*args, **kwargs)
        finally:
            if undelivered:
                self.telemetry.deliver()

    def _run_under_stance(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if stances.is_default():  # again: the next call need not come here
            with self._switch_lock:
                self.run = self.run
        with stances.answered(frames.under_stance):
            return run(*args, **kwargs)

    def _runs_eager_after(self, error: BaseException) -> bool:
        """Whether the call raised only because torch.jit or FX was tracing it."""
        if frames.refuses_to_be_traced(error):
            self.telemetry.ran_eager("traced")
            return True
        if self._engine is not None and not self.telemetry.is_all_eager:
            self._engine.call_raised()
        return False

    def _also_per_call(self) -> tuple[Any, ...]:
        if not self._initialised:
            return ()
        is_eager = self._engine is None or self.telemetry.is_all_eager
        stance = stances.NOT_HELD if is_eager else stances.holder()
        return *self.telemetry.per_call, *stance

    def __reduce__(self) -> str | tuple[Any, ...]:
        return type(self), (self.owner, self.name, self.plain, self.options)

    def load_compiler(self) -> Engine:
        """Loads torch's compiler; before the first call, to leave that its deadline."""
        backends.prepare_for_threads(inductor=self.options.uses_inductor)
        if text := untested_torch():
            self.telemetry.note(text)
        # The engine must not keep the model.
        me = weakref.ref(self)
        self._engine = Engine(
            self.options,
            self.telemetry,
            find_key=functools.partial(_sharing_key, me),
            find_model=functools.partial(_model_of, me),
        )
        self._engine.agreement = self._agreement
        weakref.finalize(self, self._engine.close)
        return self._engine

    @property
    def engine(self) -> Engine:
        return self._engine or self.load_compiler()

    # -- strategies --------------------------------------------------------------------

    def adopt(self, *, may_be_moved: bool = False) -> bool:
        """Checks the recipe, if there is one; the model runs eager if it does not fit.

        With `may_be_moved`, a model that is only on another device passes: it may be
        moved before its first call.
        """
        source = self.options.recipe
        if source is None:
            return True
        subject = self.eager if self.owner is None else self.owner
        adoption = source.adopted(subject)
        movable = adoption.movable and may_be_moved
        self.adoption = replace(adoption, movable=movable)
        why_not = adoption.why_not or recipe_following.apply_settings(source)
        if why_not is None or movable:
            if note := recipe_following.graph_left_out(source, wait=self.options.wait):
                self.telemetry.note(note)
            return True
        self._reject_recipe(source, why_not)
        return False

    def _reject_recipe(self, source: RecipeSource, why: str) -> None:
        self.adoption = replace(self.adoption, why_not=why)
        message = f"{source.name} is not followed: {why}; {TUNE_HINT}"
        self.go_eager(Fallback("recipe", "the model", message))

    def prepare(self) -> None:
        """Loads the compiler, here and in the child, before the first call."""
        if self.options.uses_inductor:
            # It loads torch while this process loads the compiler.
            self._warm_child()
        try:
            self.load_compiler()
        except (OSError, MissingHook):
            pass  # the first call tries again; if it fails too, the status says why
        except Exception as error:
            if self.options.recipe is None:
                raise
            self._reject_recipe(self.options.recipe, one_line(error))

    def _first_call(self, /, *args: Any, **kwargs: Any) -> Any:
        """The first call: applies the strategy, then runs it."""
        if frames.is_traced_elsewhere():
            self.telemetry.ran_eager("traced")
            return self.eager(*args, **kwargs)
        strategy = self.options.requested
        records = False
        with self._first_call_lock:
            first = self.run == self._first_call  # no other thread was faster
            if first and self.adopt():
                records = self._records_blocks(strategy)
                if records:
                    self._run_eager_only("recorded")  # for other threads, meanwhile
                else:
                    self.apply_strategy(strategy)
        if not first:
            return self.run(*args, **kwargs)
        self._join_ranks()
        self.telemetry.mark_current_call_eager()
        in_child = self._engine is not None and self.options.codegen_in_child
        packed = self.pack is not None and self.pack["used"]
        if in_child and self.strategy != "eager" and not packed:
            # The child may have ended since `prepare`. It loads torch for seconds.
            self._warm_child()
        if records:
            return self._find_regions(*args, **kwargs)
        try:
            with stances.answered(frames.under_stance):
                return self.run(*args, **kwargs)
        finally:
            if in_child:
                self._end_unused_child()

    def _warm_child(self) -> None:
        """Starts the child, unless existing code probably serves this model."""
        if not shared_code.exists(self, self.options):
            compile_job.worker_of(waits=self.options.wait).warm(self)

    def _end_unused_child(self) -> None:
        """Ends the child if nothing of this model needs it: compiling has failed."""
        assert self._engine is not None
        compiles = self.telemetry.compilations or self._engine.pending
        if not compiles and (self.strategy == "eager" or self.telemetry.fallbacks):
            compile_job.worker_of(waits=self.options.wait).end_unused(self)

    def _join_ranks(self) -> None:
        """Decides with the other ranks of a distributed run from now on."""
        self._has_joined = True
        if self._agreement is None and not self._is_trial:
            self._agreement = agreement.join(self)
            # The engine may be what cannot be loaded.
            if self._agreement is not None and self._engine is not None:
                self._engine.agreement = self._agreement
                self._engine.share_no_code()  # ranks vote on compilations

    def agree_on_verification(self) -> None:
        """Goes eager if the verification of this call failed on another rank."""
        if self._agreement is None:
            return
        objection = self._agreement.agree_on_verification(
            until=time.monotonic() + self.options.deadline_s
        )
        if objection is not None:
            self.go_eager(Fallback(agreement.KIND, "the model", str(objection)))

    def _records_blocks(self, strategy: Strategy) -> bool:
        """Whether the first call must be recorded to find the repeated blocks."""
        named = self._plan.regions or strategy.graph
        return strategy.form in BLOCKS and not named

    def apply_strategy(self, strategy: Strategy) -> None:
        try:
            self._apply(strategy)
        except (OSError, MissingHook) as error:
            # torch.compile creates its cache folders before it compiles anything.
            self.go_eager(Fallback("compile error", "the model", one_line(error)))
        except Exception as error:
            if self.options.recipe is None:
                raise
            self._reject_recipe(self.options.recipe, one_line(error))

    def _apply(self, strategy: Strategy) -> None:
        if strategy.as_is or os.environ.get("TORCHPROOF_DISABLE") == "1":
            self.go_eager(None)
        elif strategy.graph:
            self._install(self._graph_replayer(strategy))
        else:
            self._install(self._runner(strategy))

    def _runner(self, strategy: Strategy) -> Callable[..., Any]:
        """The callable for a strategy: the model with compiled parts, or compiled."""
        varying = recipe_following.whole_varying(self._plan)
        if strategy.form == "core":
            assert self.owner is not None and strategy.method is not None
            place = method_of(self.owner, strategy.method)
            if place != (self.owner, self.name):
                return self._compile_parts(
                    [(MethodReplacement.install(*place), varying)]
                )
        if strategy.form == "regional":
            return self._compile_parts(self._block_parts())
        if strategy.form == "eager":
            return self._counted_eager()
        if strategy.form == "nested":
            self._parts = [part for part, _ in self._block_parts()]
            trained = recipe_following.measured_training(self.options.recipe)
            recipe_following.mark_regions(self._parts, train=trained)
        return recipe_following.marked(self._compiled(self), varying)

    def _block_parts(self) -> Iterator[tuple[MethodReplacement, Varying]]:
        """A replacement of each block's forward, with the sizes to mark there."""
        for region in self._plan.regions:
            for path in region.paths:
                assert self.owner is not None
                block = self.owner.get_submodule(path)
                yield BlockForward.install(block, "forward"), region.varying

    def _find_regions(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the first call eager and records which blocks feed one another."""
        try:
            with forks.undone_in_fork(self._start_over):
                answer, strategy = self._record_first_call(args, kwargs)
        except BaseException:
            self._start_over()  # the recording is incomplete
            raise
        self.apply_strategy(strategy)
        return answer

    def _start_over(self) -> None:
        """Makes the next call the first one."""
        self.telemetry.all_eager(False)
        self.run = self._first_call

    def _record_first_call(self, args: Any, kwargs: Any) -> tuple[Any, Strategy]:
        """The answer of an eager call, and the strategy for the blocks it used."""
        from torchproof.strategies import CallRecorder, regions

        assert self.owner is not None
        with CallRecorder(self.owner) as recorder:
            answer = self.eager(*args, **kwargs)
        self.telemetry.ran_eager("recorded")
        sites = (Site("", paths=each) for each in regions.find(self.owner, recorder))
        self._plan = replace(self._plan, sites=tuple(sites))
        if self._plan.regions:
            return answer, self.options.requested.in_graph
        self.strategy = "full"
        self.why = f"{self.why}; the model has no repeated blocks"
        return answer, parse("full")

    def _graph_replayer(self, strategy: Strategy) -> Callable[..., Any]:
        """Replays whole calls from CUDA graphs; the strategy alone runs the others."""
        inner = strategy.in_graph
        run: Callable[..., Any] = self._first_inner_call
        if inner.form == "core":  # its method is compiled before the recording
            run = self._runner(inner)
            inner = parse("eager")
        make = functools.partial(graphed, self.eager, inner, self.options)
        self._replayer = GraphReplayer(self.owner, make, run, self.telemetry.note)
        return self._replayer

    @property
    def has_compiled(self) -> bool:
        """Whether a call would run compiled code; it may compile it first."""
        if self.options.wait or (self._replayer and self._replayer.is_compiled):
            return True
        compiled = self.telemetry.compilations or self._note_on_sharing
        return bool(compiled) and not self.engine.pending

    def _first_inner_call(self, /, *args: Any, **kwargs: Any) -> Any:
        """The first call that runs without the CUDA graph."""
        strategy = self.options.requested.in_graph
        replayer = self._replayer
        assert replayer is not None
        if strategy.form == "nested":  # its regions would conflict with the recorded
            strategy = replace(strategy, form="full")
        with self._first_call_lock:
            if replayer.inner == self._first_inner_call:
                answer = None
                records = self._records_blocks(strategy)
                if records:
                    answer, strategy = self._record_first_call(args, kwargs)
                replayer.inner = self._runner(strategy)
                if records:
                    return answer
        return replayer.inner(*args, **kwargs)

    def _compile_parts(
        self, parts: Iterable[tuple[MethodReplacement, Varying]]
    ) -> Callable[..., Any]:
        pairs = list(parts)
        for part, varying in pairs:
            part.rebuild = functools.partial(self._compile_part, part, varying)
            part.rebuild()
        self._parts = [part for part, _ in pairs]
        return self.eager

    def _compile_part(self, part: MethodReplacement, varying: Varying) -> None:
        part.run = recipe_following.marked(self._compiled(part), varying)

    def _compiled(self, part: MethodReplacement) -> Callable[..., Any]:
        fn = frames.traceable(part.eager)
        name = frames.describe_code(fn.__code__)
        decorator = None
        if part.owner is not None and fn.__code__.co_name != part.name:
            # The code is a decorator's: name the method instead.
            decorator, name = name, f"{type(part.owner).__name__}.{part.name}"
        self.engine.set_name(fn.__code__, name, decorator=decorator)
        backend = self.engine.choose_backend()
        with frames.intercept_conversions(
            self.engine.convert,
            backend,
            functools.partial(_ran_eager_under, weakref.ref(self)),
            fullgraph=self.options.fullgraph,
        ) as callbacks:
            compiled: Callable[..., Any] = torch.compile(
                fn, backend=backend, **self.options.for_dynamo
            )
        self.engine.callbacks += callbacks
        return compiled

    def _install(self, compiled: Callable[..., Any]) -> None:
        """Makes calls run compiled code, verified as the options say."""
        self.compiled = run = compiled
        if self.options.verify is not False:
            from torchproof.runtime.verification import CallVerifier

            run = CallVerifier(self, run)
        self.telemetry.all_eager(False)
        self.run = run
        self.disabled_by = why = frames.why_compile_is_disabled()
        if why is not None:
            self.telemetry.note(nothing_compiled(why))
            self.run = functools.partial(self._run_disabled, run)

    def _run_disabled(
        self, run: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Counts calls as eager as long as a setting stops torch from compiling."""
        if frames.why_compile_is_disabled():
            self.telemetry.ran_eager("disabled")
        else:
            self.telemetry.remove_note(nothing_compiled(self.disabled_by))
            self.disabled_by = None
            with self._switch_lock:
                if self.strategy != "eager":
                    self.run = run
        return run(*args, **kwargs)

    def go_eager(self, item: Fallback | None) -> None:
        """Runs all following calls eager."""
        with self._switch_lock:
            self.strategy = "eager"
            for part in self._parts:
                part.rebuild = part.rebuild_eager
                part.rebuild()
            if item is not None:
                self.why = f"{item.kind}: {item.why}"
                self.telemetry.fell_back(item)
                if self._agreement is not None:
                    self._agreement.goes_eager(item.kind, item.why)
                if self._engine is not None and item.kind == "verification":
                    self._engine.drop_code()
            self._run_eager_only()
            if not self._has_joined:
                self.run = self._first_eager_call

    def stop_waiting(self) -> None:
        """From now on, a call runs eager while what it needs is compiled.

        A CUDA graph of a recipe still records each new shape in its first call.
        """
        self.options = replace(self.options, wait=False)
        self.engine.options = self.options

    def _run_eager_only(self, why: EagerReason | None = None) -> None:
        """Lets all calls run eager, by default because the model fell back."""
        if why is None:
            why = "strategy" if self.options.strategy == "eager" else "fallback"
        self.telemetry.all_eager(True, why)
        self.run = self.eager

    def _first_eager_call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Tells the other ranks that this one runs eager: they may wait for its vote.

        Not earlier, because the process group may not exist yet.
        """
        with self._first_call_lock:
            if not self._has_joined:
                self._join_ranks()
            if self.run == self._first_eager_call:
                self._run_eager_only()
        return self.eager(*args, **kwargs)

    def _rebuild_all(self) -> None:
        """Compiles again after the class has got another forward."""
        if self.strategy == "eager" and self.options.strategy != "eager":
            self._run_eager_only()  # the model fell back, and stays eager
        elif self.run != self._first_call:
            self.telemetry.note(
                f"{self.name} of {type(self.owner).__name__} was replaced: the model"
                " compiles again at the next call"
            )
            self._start_anew()
            self.run = self._first_call

    def _start_anew(self) -> None:
        """Forgets the blocks: those of the next first call may be others.

        That call is recorded, and Dynamo must not trace the recorder in a block.
        """
        self.remove_parts()
        self._parts = []
        self._plan = recipe_following.plan_of(self.options.recipe)

    def _counted_eager(self) -> Callable[..., Any]:
        """The eager forward that counts its calls, for when only some calls are."""
        eager = self.eager
        note = self.telemetry.ran_eager

        def run(*args: Any, **kwargs: Any) -> Any:
            note("strategy")
            return eager(*args, **kwargs)

        return run

    def run_eager(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs one call eager, compiled regions included."""
        if not self._parts:
            return self.eager(*args, **kwargs)
        with self._switch_lock:
            for part in self._parts:
                part.refresh_method()
            compiled = [(part, part.run) for part in self._parts]
            for part, _ in compiled:
                part.run = part.eager

            def switch_back() -> None:
                for part, run in compiled:
                    part.run = run

            try:
                with forks.undone_in_fork(switch_back):
                    return self.eager(*args, **kwargs)
            finally:
                switch_back()

    def remove_parts(self) -> None:
        """Gives the blocks their own methods back."""
        for part in self._parts:
            attributes = part.owner.__dict__
            if attributes.get(part.name) is part:
                del attributes[part.name]
                if part.plain is not None:
                    attributes[part.name] = part.plain

    def for_copy(self, module: nn.Module) -> CompiledForward:
        """The forward of a shallow copy, which has the same parameters and blocks.

        What the strategy compiles inside the model belongs to the original.
        """
        options = self.options
        if options.requested.form not in ("full", "eager"):
            why = f"copy.copy of a model with the strategy {options.strategy}: only"
            why = f"{why} what both share is compiled; copy.deepcopy compiles its own"
            options = replace(
                options, strategy="eager", why=why, recipe=None, by_recipe=None
            )
        return type(self)(module, self.name, self.plain, options)

    def for_replica(self) -> Any:
        item = Fallback("unsupported", "the model", _REPLICAS)
        if item not in self.telemetry.fallbacks:
            self.telemetry.fell_back(item)
            self.telemetry.deliver()  # the model itself may never be called
        return super().for_replica()

    def for_timing(self, module: nn.Module | None) -> CompiledForward:
        """Another one for the module, or for a copy of it, that shares this engine.

        Its calls belong to a speed trial: they are not counted, verified or reported.
        """
        plain = replace(self.options, verify=False, wait=True, on_event=None)
        forward = type(self)(module, self.name, self.plain, plain)
        forward._engine = self.engine
        forward._is_trial = True
        return forward

    # -- status ------------------------------------------------------------------------

    def status(self) -> Status:
        telemetry = self.telemetry
        recipe = self.options.recipe
        # First: what ends after this has its code below.
        progress = self._progress
        graph = self._replayer.status() if self._replayer else None
        uncompiled = 0
        if self._replayer is not None and graph is not None:
            uncompiled = graph["plain_calls"] - self._replayer.unrecorded_calls
        untraced = self.pack is not None and self.pack.get("untraced")
        # Dynamo skips functions without operations, and reports nothing.
        shares = self._note_on_sharing
        compiles = telemetry.compilations or graph or untraced or shares
        counts = telemetry.call_counts()
        compiled_calls = counts.compiled if compiles else 0
        # A call without the graph may have counted as eager already.
        compiled_calls = max(0, compiled_calls - uncompiled)
        disabled_by = self._why_not_compiled(compiled_calls)
        notes = [nothing_compiled(disabled_by)] if disabled_by else []
        return Status(
            model=telemetry.name,
            strategy=self.strategy,
            why=self.why,
            deadline_s=self.options.deadline_s,
            calls=counts.calls,
            compiled_calls=compiled_calls,
            eager_calls=counts.eager_calls(compiled_calls, has_code=bool(compiles)),
            pending=self._engine.pending if self._engine else (),
            compilations=tuple(telemetry.compilations),
            graph_breaks=None if shares else len(telemetry.breaks),
            recompiles=telemetry.recompiles,
            compile_s=telemetry.compile_s,
            fallbacks=tuple(telemetry.fallbacks),
            verifications=tuple(telemetry.verifications),
            worth=self.worth,
            shares_code=bool(shares),
            notes=tuple(dict.fromkeys((*telemetry.notes, *notes, *shares))),
            disabled_by=disabled_by,
            recipe=recipe.to_json(self.adoption) if recipe else None,
            graph=graph,
            pack=self.pack,
            ranks=self._agreement.to_json() if self._agreement else None,
            totals=telemetry.totals,
            state=self._state(progress, has_code=bool(compiles)),
        )

    @property
    def _progress(self) -> Literal["compiling", "prepared"] | None:
        """Whether something compiles, or was compiled for a call that has to follow."""
        engine = self._engine
        if engine is None:
            return None
        if engine.pending or engine.is_compiling:
            return "compiling"
        return "prepared" if engine.has_prepared else None

    def _state(
        self, progress: Literal["compiling", "prepared"] | None, *, has_code: bool
    ) -> State:
        if self.strategy == "eager":
            return "eager"
        if progress == "compiling":
            return "compiling"
        if not self.telemetry.calls:
            return "not called"
        # Once a call was compiled, other prepared code is for calls that may not come.
        if progress == "prepared" and not (has_code and self.telemetry.compiled_calls):
            return "compiling"
        if not has_code:
            return "eager"
        return "partly compiled" if self.telemetry.fallbacks else "compiled"

    @property
    def _note_on_sharing(self) -> tuple[str, ...]:
        """A note if calls run, or may run, code that another model compiled."""
        if self._engine is None or self.strategy == "eager":
            return ()
        if (others := self._engine.others_code) is None:
            return ()
        return (f"{others} code that was compiled for another {self.telemetry.name}",)

    def _why_not_compiled(self, compiled_calls: int) -> str | None:
        """The setting that stops torch from compiling, if no call ran compiled code."""
        if self.strategy == "eager" or compiled_calls or self._engine is None:
            return self.disabled_by
        return self.disabled_by or frames.why_compile_is_disabled()

    def retry(self) -> None:
        """Starts over with the same options, as if just compiled."""
        if self._engine is not None:
            self._engine.retry()
        self.telemetry.fallbacks.clear()
        self.strategy = self.options.strategy
        self.why = self.options.why
        self._start_anew()
        self.telemetry.all_eager(False)
        if self._agreement is not None:
            self._agreement.begin_attempt(self)
        self.run = self._first_call


def _ran_eager_under(forward: weakref.ref[CompiledForward], stance: str) -> None:
    """Counts the call as eager; not the eager runs of a call that is recorded.

    What such a call returns comes from the graph, whose status counts it.
    """
    alive = forward()
    if alive is None or (alive._replayer is not None and stances.is_forced()):
        return
    alive.telemetry.ran_eager_under(stance)


def _sharing_key(forward: weakref.ref[CompiledForward]) -> Hashable:
    alive = forward()
    return None if alive is None else shared_code.key_of(alive, alive.options)


def _model_of(forward: weakref.ref[CompiledForward]) -> nn.Module | None:
    alive = forward()
    return None if alive is None else alive.owner


def _cost_to_log(forward: weakref.ref[CompiledForward]) -> str | None:
    alive = forward()
    return None if alive is None else cost_to_log(alive.status())


class CompiledFunction(CompiledForward):
    """A compiled function, which binds as a method in the body of a class.

    `CompiledForward` itself has no `__get__`: Dynamo of torch 2.11 would call it for
    attributes of an instance too.
    """

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        name = getattr(self, "__qualname__", "")
        home = sys.modules.get(self.__module__)
        # A decorated function is pickled by its name, as functions are.
        return name if getattr(home, name, None) is self else super().__reduce__()
