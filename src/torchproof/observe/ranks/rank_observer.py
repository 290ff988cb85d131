"""Observes one rank: what `check` observes, and what makes other ranks wait."""

from __future__ import annotations

import functools
import gc
import sys
import time
from collections.abc import Callable
from typing import Any

from torchproof.observe.observer import Observer
from torchproof.observe.ranks.collectives import CollectiveReporter
from torchproof.observe.step_detector import StepDetector
from torchproof.process import Stream
from torchproof.records import JsonObject
from torchproof.targets import plain, script, stack

_LEAST_GC_S = 0.05  # of a collection that is reported: shorter ones delay nobody
_BACKWARD = "bwd_compilation_metrics"
_SHARD = "fully_shard"
_FSDP = "torch.distributed.fsdp"


class RankObserver(Observer):
    """Adds steps, collectives, garbage collection, and wrapping with DDP or FSDP2.

    Code is generated as the program would: other ranks wait for that too.
    """

    generates_code = True

    def __init__(self, stream: Stream, *, calls_are_wrapper_calls: bool) -> None:
        super().__init__(stream, calls_are_wrapper_calls=calls_are_wrapper_calls)
        self._steps = 0
        self._detector = StepDetector(self._step_begins, self._steps_begin_anew)
        self._collectives = CollectiveReporter(stream)
        self._wrapped: set[int] = set()
        self._gc_began = 0.0

    def attach(self) -> None:
        # First, because both patch what torch.compile creates: the detector only during
        # each call of torch.compile, the observer from the first call on.
        self._detector.attach(lambda arguments: None)
        self.hooks.callback(self._detector.detach)
        super().attach()
        self._watch_optimizers()
        gc.callbacks.append(self._collected)
        self.hooks.callback(gc.callbacks.remove, self._collected)
        self._watch_wrapping()
        if self._has_hooks("collectives of a rank"):
            self._collectives.start()
            self.hooks.callback(self._collectives.stop)

    # -- steps -------------------------------------------------------------------------

    def _step_begins(self) -> None:
        self.stream.write("step", number=self._steps)
        self._steps += 1

    def _steps_begin_anew(self) -> None:
        """All calls so far were one step: the optimizer stepped only now."""
        self._steps = 1
        self.stream.write("one_step")

    def _watch_optimizers(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        handle = register_optimizer_step_post_hook(self._optimizer_stepped)
        self.hooks.callback(handle.remove)

    def _optimizer_stepped(self, *arguments: Any) -> None:
        """Steps of a rank that calls no compiled function are those of its optimizer.

        A compiled optimizer traces this hook.
        """
        import torch

        if not torch.compiler.is_compiling() and not self._steps:
            self.stream.write("optimizer_step")

    # -- compilation -------------------------------------------------------------------

    def _receive(self, metadata: JsonObject, payload: str) -> None:
        if _BACKWARD in metadata and not self.paused:
            self.stream.write("backward", metadata=metadata)
        super()._receive(metadata, payload)

    # -- garbage collection ------------------------------------------------------------

    def _collected(self, phase: str, facts: dict[str, int]) -> None:
        now = time.monotonic()
        if phase == "start":
            self._gc_began = now
        elif now - self._gc_began >= _LEAST_GC_S:
            self.stream.write(
                "gc",
                began=self._gc_began,
                seconds=now - self._gc_began,
                generation=facts.get("generation"),
            )

    # -- DDP and FSDP2 -----------------------------------------------------------------

    def _watch_wrapping(self) -> None:
        from torch.nn import parallel

        wrapper: Any = parallel.DistributedDataParallel
        original: Callable[..., None] = wrapper.__init__

        @functools.wraps(original)
        def initialise(ddp: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            original(ddp, module, *args, **kwargs)
            self._note_wrap("DistributedDataParallel", module, ddp)

        self.hooks.enter_context(self.private.patched(wrapper, "__init__", initialise))
        if _FSDP in sys.modules:
            self._watch_sharding()
        else:
            script.when_imported(_FSDP, self._watch_sharding)

    def _watch_sharding(self) -> None:
        fsdp: Any = sys.modules[_FSDP]
        original: Callable[..., Any] = fsdp.fully_shard

        @functools.wraps(original)
        def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
            sharded = original(module, *args, **kwargs)
            self._note_wrap(_SHARD, module, module)
            return sharded

        self.hooks.enter_context(self.private.patched(fsdp, _SHARD, fully_shard))

    def _note_wrap(self, how: str, module: Any, wrapped: Any) -> None:
        self._wrapped.add(id(wrapped))
        self.stream.write(
            "wrap",
            number=id(wrapped),
            how=how,
            module=type(module).__name__,
            compiled=self._contains_compiled(module),
            site=plain(stack()),
        )

    def _contains_compiled(self, module: Any) -> bool:
        modules = module.modules() if hasattr(module, "modules") else ()
        return any(
            self.private.original_of(each) is not each or _is_compiled_in_place(each)
            for each in modules
        )

    def _register(self, model: Any = None, **kwargs: Any) -> Any:
        owner = getattr(model, "__self__", model)  # of `_call_impl` in Module.compile
        modules = getattr(owner, "modules", None)
        wrapped = self._wrapped.intersection(
            map(id, modules()) if callable(modules) else ()
        )
        if wrapped:
            self.stream.write("compiled_wrapped", numbers=sorted(wrapped))
        return super()._register(model, **kwargs)


def _is_compiled_in_place(module: Any) -> bool:
    """After `module.compile()`; the spy on an original module is not compiled code."""
    call = getattr(module, "_compiled_call_impl", None)
    return call is not None and not isinstance(call, functools.partial)
