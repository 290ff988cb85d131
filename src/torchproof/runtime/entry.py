"""The callables that stand where `forward` stood: one for the model, one per region.

They sit in the module's own `__dict__`, so the module stays what it is: its class, its
state, its hooks and its other methods are untouched. Copies and pickles of the module
carry them along and compile anew when they are first called.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from torchproof.records import UserError
from torchproof.runtime import jobs
from torchproof.runtime.engine import Engine, Settings
from torchproof.runtime.facts import Fallback, Status
from torchproof.runtime.graphs import one_line
from torchproof.runtime.monitor import Monitor
from torchproof.runtime.parts import Options, Part
from torchproof.runtime.telemetry import Telemetry
from torchproof.strategies import Strategy, parse
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
        self.strategy = options.strategy
        self.why = options.why
        self.worth: Mapping[str, Any] | None = None
        self.monitor = Monitor(self.telemetry) if options.monitor else None
        self._engine: Engine | None = None
        self._parts: list[Part] = []
        self._switching = threading.RLock()  # one thread at a time turns parts eager
        self._beginning = threading.Lock()
        self.run = self._begin
        # Held here, and used without a method: those cost each call.
        self._numbers, self._here = self.telemetry.numbers, self.telemetry.here

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            # Part of something larger that is compiled: it would guard on counters.
            return self.__wrapped__(*args, **kwargs)  # type: ignore[attr-defined]
        self._here.call = next(self._numbers)
        try:
            return self.run(*args, **kwargs)
        except BaseException:
            if self._engine is not None:
                self._engine.call_raised()
            raise

    def __reduce__(self) -> str | tuple[Any, ...]:
        return type(self), (self.owner, self.name, self.plain, self.options)

    def load_compiler(self) -> Engine:
        """Not in the first call, whose deadline it would use up."""
        options = self.options
        ships = self._arguments.get("backend", "inductor") == "inductor"
        backends.prepare_for_threads(inductor=ships)
        settings = Settings(
            options.deadline_s, options.recompile_limit, options.wait, ships
        )
        self._engine = Engine(settings, self.telemetry, self._arguments)
        weakref.finalize(self, self._engine.close)
        return self._engine

    @property
    def _arguments(self) -> dict[str, Any]:
        """What torch.compile is told, by the strategy's name and beside it."""
        return {**parse(self.options.strategy).arguments, **self.options.arguments}

    @property
    def engine(self) -> Engine:
        return self._engine or self.load_compiler()

    # -- strategies --------------------------------------------------------------------

    def _begin(self, *args: Any, **kwargs: Any) -> Any:
        """The first call: puts the strategy in force, then goes on with it."""
        strategy = parse(self.options.strategy)
        with self._beginning:
            first = self.run == self._begin  # and no other thread was
            if first and strategy.form == "regional":
                self.run = self._counted_eager()  # for other threads, meanwhile
            elif first:
                self.put_in_force(strategy)
        if not first:
            return self.run(*args, **kwargs)
        if self._engine is not None and self._engine.settings.ships:
            # It loads torch, for seconds, while this process traces.
            jobs.shared_worker().warm()
        if strategy.form == "regional":
            return self._find_regions(*args, **kwargs)
        return self.run(*args, **kwargs)

    def put_in_force(self, strategy: Strategy) -> None:
        try:
            self._apply(strategy)
        except OSError as error:
            self._cannot_be_compiled(error)

    def _cannot_be_compiled(self, error: OSError) -> None:
        """torch.compile needs its folders before there is anything to compile."""
        self.go_eager(Fallback("compile error", "the model", one_line(error)))

    def _apply(self, strategy: Strategy) -> None:
        if strategy.form == "eager" or os.environ.get("TORCHPROOF_DISABLE") == "1":
            self.go_eager(None)
        elif strategy.form == "core":
            assert self.owner is not None and strategy.method is not None
            holder, method = _method_of(self.owner, strategy.method)
            self._compile_parts([Part.put(holder, method)])
        else:
            self._watched(self._compiled(self))

    def _find_regions(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the first call eager and watches which blocks feed one another."""
        from torchproof.strategies import regions
        from torchproof.strategies.watching import Watch

        assert self.owner is not None
        try:
            with Watch(self.owner) as watch:
                answer = self.eager(*args, **kwargs)
        except BaseException:
            self.run = self._begin  # nothing was learned: the next call is the first
            raise
        self.telemetry.ran_eager()
        found = regions.find(self.owner, watch)
        if not found:
            self.strategy, why = "full", "no repeated blocks were seen"
            self.why = f"{self.why}; {why}"
            self.put_in_force(parse("full"))
            return answer
        blocks = [
            Part.put(self.owner.get_submodule(path), "forward")
            for region in found
            for path in region
        ]
        try:
            self._compile_parts(blocks)
        except OSError as error:
            self._cannot_be_compiled(error)
        return answer

    def _compile_parts(self, parts: list[Part]) -> None:
        for part in parts:
            part.run = self._compiled(part)
        self._watched(self.eager, parts)

    def _compiled(self, part: Part) -> Callable[..., Any]:
        dynamic = self._arguments.get("dynamic")
        fn = frames.traceable(part.eager)
        name = frames.place(fn.__code__)
        if part.owner is not None and fn.__code__.co_name != part.name:
            name = f"{type(part.owner).__name__}.{part.name}"  # not the decorator's
        self.engine.call_it(fn.__code__, name)
        with frames.converting(self.engine.convert):
            compiled: Callable[..., Any] = torch.compile(
                fn, backend=self.engine.backend, dynamic=dynamic
            )
        return compiled

    def _watched(
        self, compiled: Callable[..., Any], parts: list[Part] | None = None
    ) -> None:
        """What each call runs: compiled code, verified and timed as was asked for."""
        self._parts = parts or []
        self.compiled = compiled
        run = compiled if self.monitor is None else self.monitor.timing(compiled)
        if self.options.verify is not False:
            run = self._verifying(run)
        self.run = run

    def go_eager(self, item: Fallback | None) -> None:
        """From here on, everything runs as it is."""
        self.strategy = "eager"
        with self._switching:
            for part in self._parts:
                part.run = part.eager
        if item is not None:
            self.why = f"{item.kind}: {item.why}"
            self.telemetry.fell_back(item)
        run = self._counted_eager()
        self.run = run if self.monitor is None else self.monitor.timing(run)

    def _counted_eager(self) -> Callable[..., Any]:
        eager, note = self.eager, self.telemetry.ran_eager

        def run(*args: Any, **kwargs: Any) -> Any:
            note()
            return eager(*args, **kwargs)

        return run

    def run_eager(self, *args: Any, **kwargs: Any) -> Any:
        """One call as it would be had nothing been compiled, regions included."""
        if not self._parts:
            return self.eager(*args, **kwargs)
        with self._switching:
            compiled = [(part, part.run) for part in self._parts]
            for part, _ in compiled:
                part.run = part.eager
            try:
                return self.eager(*args, **kwargs)
            finally:
                for part, run in compiled:
                    part.run = run

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
        entry = Entry(module, self.name, self.plain, plain)
        entry._engine = self.engine
        return entry

    # -- verification ------------------------------------------------------------------

    def _verifying(self, run: Callable[..., Any]) -> Callable[..., Any]:
        every = self.options.verify
        left = 0

        def verifying(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left > 0 or not self._has_compiled():
                left -= 1
                return run(*args, **kwargs)
            if every == "first":
                self.run = run
            else:
                left = int(every) - 1
            return self._verify(run, args, kwargs)

        return verifying

    def _has_compiled(self) -> bool:
        """Whether a call would run compiled code, having waited for it or not."""
        if self.options.wait:
            return True
        return bool(self.telemetry.compilations) and not self.engine.pending

    def _verify(
        self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        from torchproof.runtime import verify

        answer, verification = verify.verified(
            self.run_eager, run, args, kwargs, owner=self.owner
        )
        if self.telemetry.was_eager and verification.verdict == "same":
            why = "some of it ran eager, and what runs eager is the same"
            verification = replace(verification, why=why)
        self.telemetry.verified(verification.to_json())
        self.telemetry.ran_eager()  # it is eager's answer that is handed out
        if not verification.passed:
            self.go_eager(Fallback("verification", "the model", str(verification)))
        return answer

    # -- for people --------------------------------------------------------------------

    def status(self) -> Status:
        told = self.telemetry
        return Status(
            told.name,
            self.strategy,
            self.why,
            self.options.deadline_s,
            calls=told.calls,
            # Dynamo leaves functions without operations alone, and says nothing.
            compiled_calls=told.compiled_calls if told.compilations else 0,
            pending=self._engine.pending if self._engine else (),
            compilations=tuple(told.compilations),
            recompiles=told.recompiles,
            compile_s=told.compile_s,
            fallbacks=tuple(told.fallbacks),
            stuck=tuple(told.stuck),
            verifications=tuple(told.verifications),
            worth=self.worth,
            latency=self.monitor.latency() if self.monitor else {},
            notes=tuple(told.notes),
        )

    def retry(self) -> None:
        """As if it had just been compiled, with the options it was compiled with."""
        if self._engine is not None:
            self._engine.retry()
        self.telemetry.fallbacks.clear()
        self.strategy, self.why = self.options.strategy, self.options.why
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


def _method_of(owner: nn.Module, path: str) -> tuple[nn.Module, str]:
    holder, _, name = path.rpartition(".")
    try:
        found = owner.get_submodule(holder)
    except AttributeError as error:
        raise UserError(f"core:{path}: {error}") from None
    if not callable(getattr(found, name, None)):
        raise UserError(f"core:{path}: {type(found).__name__} has no method {name}")
    return found, name
