"""The callables that stand where `forward` stood: one for the model, one per region.

They sit in the module's own `__dict__`, so the module stays what it is: its class, its
state, its hooks and its other methods are untouched. Copies and pickles of the module
carry them along and compile anew when they are first called.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from torchproof.process import forks
from torchproof.runtime import compile_job, recipe_following
from torchproof.runtime.backend import one_line
from torchproof.runtime.engine import Engine, Settings
from torchproof.runtime.graph_replay import Replaying, graphed
from torchproof.runtime.method_replacement import Options, Part, method_of
from torchproof.runtime.monitor import Monitor
from torchproof.runtime.status_report import Fallback, Status
from torchproof.runtime.telemetry import Telemetry
from torchproof.runtime.verified_calls import Verifying
from torchproof.strategies import (
    AGAIN,
    BLOCKS,
    Adoption,
    Given,
    Site,
    Strategy,
    Varying,
    parse,
)
from torchproof.torch_private import backends, frames


class Entry(Part):
    """The model's own `forward`: counts calls, and puts the strategy in force."""

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
        self._counting = self.telemetry.counting
        self.strategy = options.strategy
        self.why = options.why
        self.worth: Mapping[str, Any] | None = None
        self.pack: Mapping[str, Any] | None = None  # what `torchproof.load` found
        self.adoption = Adoption()
        self._plan = recipe_following.plan_of(options.recipe)
        self._replaying: Replaying | None = None
        self.monitor = Monitor(self.telemetry) if options.monitor else None
        self._engine: Engine | None = None
        self._parts: list[Part] = []
        self._switching = forks.rlock()  # one thread at a time turns parts eager
        self._beginning = forks.rlock()
        self.compiled: Callable[..., Any] | None = None
        self.run = self._begin
        self.rebuild = self._begin_again
        self._is_made = True

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            # Part of something larger that is compiled: it would guard on counters.
            return self.__wrapped__(*args, **kwargs)
        run, owner, _, seen, numbers, here, undelivered = self._of_each_call
        if type(owner).forward is not seen:
            run = self.look_again()
        here.call = next(numbers)
        try:
            return run(*args, **kwargs)
        except BaseException as error:
            if not self._runs_eager_after(error):
                raise
            return self.run_eager(*args, **kwargs)
        finally:
            if undelivered:
                self.telemetry.deliver()

    def _runs_eager_after(self, error: BaseException) -> bool:
        """Whether the call raised only because torch.jit or FX was tracing it."""
        if frames.refuses_to_be_traced(error):
            self.telemetry.ran_eager()
            return True
        if self._engine is not None and not self.telemetry.is_all_eager:
            self._engine.call_raised()
        return False

    def __reduce__(self) -> str | tuple[Any, ...]:
        return type(self), (self.owner, self.name, self.plain, self.options)

    def load_compiler(self) -> Engine:
        """Not in the first call, whose deadline it would use up."""
        options = self.options
        arguments = options.compile_with
        ships = arguments.get("backend", "inductor") == "inductor"
        backends.prepare_for_threads(inductor=ships)
        settings = Settings(
            options.deadline_s, options.recompile_limit, options.wait, ships
        )
        self._engine = Engine(settings, self.telemetry, arguments)
        weakref.finalize(self, self._engine.close)
        return self._engine

    @property
    def engine(self) -> Engine:
        return self._engine or self.load_compiler()

    # -- strategies --------------------------------------------------------------------

    def adopt(self, *, may_be_moved: bool = False) -> bool:
        """Whether its recipe, if it has one, is followed; the model runs eager else.

        One that is only on another device may still be moved, before its first call.
        """
        source = self.options.recipe
        if source is None:
            return True
        subject = self.eager if self.owner is None else self.owner
        found = source.adopted(subject)
        movable = found.movable and may_be_moved
        self.adoption = replace(found, movable=movable)
        if found.why_not is None or movable:
            if note := recipe_following.graph_left_out(source, wait=self.options.wait):
                self.telemetry.note(note)
            return True
        self._not_followed(source, found.why_not)
        return False

    def _not_followed(self, source: Given, why: str) -> None:
        self.adoption = replace(self.adoption, why_not=why)
        told = f"{source.name} is not followed: {why}; {AGAIN}"
        self.go_eager(Fallback("recipe", "the model", told))

    def prepare(self) -> None:
        """Loads the compiler, so that the first call need not."""
        try:
            self.load_compiler()
        except OSError:
            pass  # it fails again in the first call, which then runs eager
        except Exception as error:
            if self.options.recipe is None:
                raise
            self._not_followed(self.options.recipe, one_line(error))

    def _begin(self, /, *args: Any, **kwargs: Any) -> Any:
        """The first call: puts the strategy in force, then goes on with it."""
        if frames.is_traced_elsewhere():
            self.telemetry.ran_eager()
            return self.eager(*args, **kwargs)  # not a call to learn from
        strategy, searches = self.options.asked, False
        with self._beginning:
            first = self.run == self._begin  # and no other thread was
            if first and self.adopt():
                searches = self._searches(strategy)
                if searches:
                    self._run_eager_only()  # for other threads, meanwhile
                else:
                    self.put_in_force(strategy)
        if not first:
            return self.run(*args, **kwargs)
        self.telemetry.this_call_too()
        ships = self._engine is not None and self._engine.settings.ships
        packed = self.pack is not None and self.pack["used"]
        if ships and self.strategy != "eager" and not packed:
            # It loads torch, for seconds, while this process traces.
            compile_job.shared_worker().warm()
        if searches:
            return self._find_regions(*args, **kwargs)
        return self.run(*args, **kwargs)

    def _searches(self, strategy: Strategy) -> bool:
        """Whether its blocks are found by watching a call: no recipe names them."""
        known = self._plan.regions or strategy.graph
        return strategy.form in BLOCKS and not known

    def put_in_force(self, strategy: Strategy) -> None:
        try:
            self._apply(strategy)
        except OSError as error:
            # torch.compile needs its folders before there is anything to compile.
            self.go_eager(Fallback("compile error", "the model", one_line(error)))
        except Exception as error:
            if self.options.recipe is None:
                raise
            self._not_followed(self.options.recipe, one_line(error))

    def _apply(self, strategy: Strategy) -> None:
        if strategy.as_is or os.environ.get("TORCHPROOF_DISABLE") == "1":
            self.go_eager(None)
        elif strategy.graph:
            self._watched(self._replayed(strategy))
        else:
            self._watched(self._in_force(strategy))

    def _in_force(self, strategy: Strategy) -> Callable[..., Any]:
        """What runs a strategy: the model with compiled parts, or compiled whole."""
        varying = recipe_following.whole_varying(self._plan)
        if strategy.form == "core":
            assert self.owner is not None and strategy.method is not None
            place = method_of(self.owner, strategy.method)
            if place != (self.owner, self.name):
                return self._with_parts([(Part.put(*place), varying)])
        if strategy.form == "regional":
            return self._with_parts(self._blocks())
        if strategy.form == "eager":
            return self._counted_eager()
        if strategy.form == "nested":
            self._parts = [part for part, _ in self._blocks()]
            trained = recipe_following.measured_training(self.options.recipe)
            recipe_following.mark_regions(self._parts, train=trained)
        return recipe_following.marked(self._compiled(self), varying)

    def _blocks(self) -> Iterator[tuple[Part, Varying]]:
        """Stands in for the forward of each block, with the sizes to mark there."""
        for region in self._plan.regions:
            for path in region.paths:
                assert self.owner is not None
                block = self.owner.get_submodule(path)
                yield Part.put(block, "forward"), region.varying

    def _find_regions(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the first call eager and watches which blocks feed one another."""
        try:
            with forks.undone_in_fork(self._begin_anew):
                answer, found = self._watch_blocks(args, kwargs)
        except BaseException:
            self._begin_anew()  # nothing was learned
            raise
        self.put_in_force(found)
        return answer

    def _begin_anew(self) -> None:
        """The next call is the first."""
        self._all_eager(False)
        self.run = self._begin

    def _watch_blocks(self, args: Any, kwargs: Any) -> tuple[Any, Strategy]:
        """The answer of a call in eager, and the strategy that fits what it showed."""
        from torchproof.strategies import Watch, regions

        assert self.owner is not None
        with Watch(self.owner) as watch:
            answer = self.eager(*args, **kwargs)
        self.telemetry.ran_eager()
        sites = (Site("", paths=each) for each in regions.find(self.owner, watch))
        self._plan = replace(self._plan, sites=tuple(sites))
        if self._plan.regions:
            return answer, self.options.asked.in_graph
        self.strategy = "full"
        self.why = f"{self.why}; no repeated blocks were seen"
        return answer, parse("full")

    def _replayed(self, strategy: Strategy) -> Callable[..., Any]:
        """Whole calls from CUDA graphs, with the strategy itself where they cannot."""
        inner = strategy.in_graph
        run: Callable[..., Any] = self._begin_inner
        if inner.form == "core":  # its method is compiled before all is recorded
            run, inner = self._in_force(inner), parse("eager")
        make = functools.partial(graphed, self.eager, inner, self.options.deadline_s)
        self._replaying = Replaying(self.owner, make, run, self.telemetry.note)
        return self._replaying

    def _begin_inner(self, /, *args: Any, **kwargs: Any) -> Any:
        """The first call that is not to be replayed."""
        strategy, replaying = self.options.asked.in_graph, self._replaying
        assert replaying is not None
        if strategy.form == "nested":  # regions would be in the way of those recorded
            strategy = replace(strategy, form="full")
        with self._beginning:
            if replaying.inner == self._begin_inner:
                answer, searched = None, self._searches(strategy)
                if searched:
                    answer, strategy = self._watch_blocks(args, kwargs)
                replaying.inner = self._in_force(strategy)
                if searched:
                    return answer
        return replaying.inner(*args, **kwargs)

    def _with_parts(self, parts: Iterable[tuple[Part, Varying]]) -> Callable[..., Any]:
        found = list(parts)
        for part, varying in found:
            part.rebuild = functools.partial(self._compile_part, part, varying)
            part.rebuild()
        self._parts = [part for part, _ in found]
        return self.eager

    def _compile_part(self, part: Part, varying: Varying) -> None:
        part.run = recipe_following.marked(self._compiled(part), varying)

    def _compiled(self, part: Part) -> Callable[..., Any]:
        dynamic = self.options.compile_with.get("dynamic")
        fn = frames.traceable(part.eager)
        name = frames.describe_code(fn.__code__)
        if part.owner is not None and fn.__code__.co_name != part.name:
            name = f"{type(part.owner).__name__}.{part.name}"  # not the decorator's
        self.engine.call_it(fn.__code__, name)
        with frames.intercept_conversions(self.engine.convert):
            compiled: Callable[..., Any] = torch.compile(
                fn, backend=self.engine.backend, dynamic=dynamic
            )
        return compiled

    def _watched(self, compiled: Callable[..., Any]) -> None:
        """What each call runs: compiled code, verified and timed as was asked for."""
        self.compiled = compiled
        run = compiled if self.monitor is None else self.monitor.timing(compiled)
        if self.options.verify is not False:
            run = Verifying(self, run)
        self._all_eager(False)
        if why := frames.why_compile_is_disabled():
            self.telemetry.note(f"nothing is compiled: {why}")
        self.run = run

    def go_eager(self, item: Fallback | None) -> None:
        """From here on, everything runs as it is."""
        self.strategy = "eager"
        with self._switching:
            for part in self._parts:
                part.rebuild = part.rebuild_eager
                part.rebuild()
        if item is not None:
            self.why = f"{item.kind}: {item.why}"
            self.telemetry.fell_back(item)
        self._run_eager_only()

    def _run_eager_only(self) -> None:
        self._all_eager(True)
        run = self.eager
        self.run = run if self.monitor is None else self.monitor.timing(run)

    def _all_eager(self, value: bool) -> None:
        self.telemetry.all_eager(value)
        self._counting = self.telemetry.counting

    def _begin_again(self) -> None:
        """The class has another forward by now: compiled as the first one was."""
        if self.strategy == "eager" and self.options.strategy != "eager":
            self._run_eager_only()  # it fell back, and stays there
        elif self.run != self._begin:
            self.telemetry.note(
                f"{self.name} of {type(self.owner).__name__} was replaced: the model"
                " is compiled again"
            )
            self.remove_parts()
            self._parts, self._plan = [], recipe_following.plan_of(self.options.recipe)
            self.run = self._begin

    def _counted_eager(self) -> Callable[..., Any]:
        """For calls of which only some are eager."""
        eager, note = self.eager, self.telemetry.ran_eager

        def run(*args: Any, **kwargs: Any) -> Any:
            note()
            return eager(*args, **kwargs)

        return run

    def run_eager(self, /, *args: Any, **kwargs: Any) -> Any:
        """One call as it would be had nothing been compiled, regions included."""
        if not self._parts:
            return self.eager(*args, **kwargs)
        with self._switching:
            for part in self._parts:
                part.look_again()
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
        """Another entry takes over: blocks are what they were."""
        for part in self._parts:
            held = part.owner.__dict__
            if held.get(part.name) is part:
                del held[part.name]
                held |= {part.name: part.plain} if part.plain is not None else {}

    def for_timing(self, module: nn.Module | None) -> Entry:
        """One of its own for the module, or for a copy of it, with this one's engine.

        Its calls are no traffic: they are not counted, verified or listened to.
        """
        plain = replace(
            self.options, verify=False, wait=True, monitor=False, on_event=None
        )
        entry = type(self)(module, self.name, self.plain, plain)
        entry._engine = self.engine
        return entry

    # -- for people --------------------------------------------------------------------

    def status(self) -> Status:
        told, recipe = self.telemetry, self.options.recipe
        graph = self._replaying.status() if self._replaying else None
        untraced = self.pack is not None and self.pack.get("untraced")
        compiles = told.compilations or graph or untraced
        compiled_calls = told.compiled_calls if compiles else 0
        return Status(
            told.name,
            self.strategy,
            self.why,
            self.options.deadline_s,
            calls=told.calls,
            # Dynamo leaves functions without operations alone, and says nothing.
            compiled_calls=compiled_calls - (graph["plain_calls"] if graph else 0),
            pending=self._engine.pending if self._engine else (),
            compilations=tuple(told.compilations),
            recompiles=told.recompiles,
            compile_s=told.compile_s,
            fallbacks=tuple(told.fallbacks),
            stuck=tuple(told.stuck),
            verifications=tuple(told.verifications),
            worth=self.worth,
            latency=self.monitor.latency() if self.monitor else {},
            notes=(*told.notes, *self._why_not_compiled(compiled_calls)),
            recipe=recipe.to_json(self.adoption) if recipe else None,
            graph=graph,
            pack=self.pack,
        )

    def _why_not_compiled(self, compiled_calls: int) -> tuple[str, ...]:
        """What torch was told meanwhile, if no call ran compiled code."""
        if self.strategy == "eager" or compiled_calls or self._engine is None:
            return ()
        why = frames.why_compile_is_disabled()
        note = f"nothing is compiled: {why}"
        return (note,) if why and note not in self.telemetry.notes else ()

    def retry(self) -> None:
        """As if it had just been compiled, with the options it was compiled with."""
        if self._engine is not None:
            self._engine.retry()
        self.telemetry.fallbacks.clear()
        self.strategy, self.why = self.options.strategy, self.options.why
        self._plan = recipe_following.plan_of(self.options.recipe)
        self._all_eager(False)
        self.run = self._begin


class FunctionEntry(Entry):
    """The entry of a function, which is a method in the body of a class.

    Only of functions: Dynamo of torch 2.11 asks attributes of an instance for it, too.
    """

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        name, home = getattr(self, "__qualname__", ""), sys.modules.get(self.__module__)
        # A decorated function goes by its name, as others do.
        return name if getattr(home, name, None) is self else super().__reduce__()
