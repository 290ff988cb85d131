"""Compiles a step before it is recorded.

Takes a strategy, returns a `Preparation`: the step to rehearse and record (`during`),
and the step to run without a recording (`apart`). Models do not change: blocks use
their compiled forward only inside these contexts.

With `nested`, the whole step is compiled, and the code of a repeated block is generated
once. With `regional`, only the repeated blocks are compiled, with one compilation for
all. Code outside of the blocks (embeddings, head, loss) runs in eager, except for
functions that launch several kernels over much memory: these are compiled, because
fusion saves kernels.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from torchproof.records import Keywords, UserError, whose
from torchproof.runtime.cudagraph.partial_trace import PartialTrace
from torchproof.strategies import (
    CallRecorder,
    NotApplicable,
    Strategy,
    nesting,
    regions,
)
from torchproof.torch_private import EagerDispatchMode, step_capture, trees

Forward = Callable[..., Any]
Body = Callable[[Forward], Forward]

GRAPHED = ("eager", "full", "regional", "nested")
# Arguments of torch.compile that Dynamo uses; the others are for Inductor.
_TRACING = ("dynamic", "fullgraph")
# A function outside of the blocks is compiled from this size on.
_OPERATIONS = 3
_BYTES = 4 << 20
# Kernels that fusion does not speed up.
_OWN_KERNELS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "embedding", "index")


@dataclass(frozen=True)
class Plan:
    """A strategy, and the backend that compiles it if that is not Inductor here."""

    strategy: Strategy
    backend: Callable[..., Any] | None = None
    traced: PartialTrace | None = None  # if not in one run

    def arguments(self) -> Keywords:
        """Those of torch.compile; static, because each shape has its recording."""
        arguments = {"dynamic": False, **self.strategy.arguments}
        if self.backend is None:
            return arguments
        tracing = {name: arguments[name] for name in _TRACING if name in arguments}
        return {**tracing, "backend": self.backend}

    def tracing(self, *, whole: bool) -> contextlib.AbstractContextManager[None]:
        """The context to call torch.compile in, for a whole step or parts of it."""
        if self.traced is None:
            return contextlib.nullcontext()
        return self.traced.of(self.backend, whole=whole)


class Preparation:
    """Eager: the step is recorded without compiling."""

    fails = False  # whether torch cannot compile the step
    reads_each_shape = False  # whether `learn` reads an eager run of each shape
    needs_eager_run = False  # before the step can be compiled

    def __init__(self, step: Forward, body: Body) -> None:
        self.step, self.body = step, body

    def watching(self) -> contextlib.AbstractContextManager[Any]:
        """The context for the eager run that `learn` reads."""
        return contextlib.nullcontext()

    def learn(self) -> None:
        """Reads the eager run: what there is to compile."""

    def during(self) -> contextlib.AbstractContextManager[Forward]:
        """The step to rehearse and record."""
        return contextlib.nullcontext(self.body(self.step))

    def apart(self) -> contextlib.AbstractContextManager[Forward]:
        """The step to run without a recording."""
        return self.during()

    @property
    def ready(self) -> Forward:
        """The step as it runs once all of its code is compiled."""
        return self.body(self.step)

    @contextlib.contextmanager
    def uncompiled(self) -> Iterator[Forward]:
        """The step in eager, without any compiled code."""
        with step_capture.force_eager():
            yield self.body(self.step)


class Full(Preparation):
    """The whole step is compiled."""

    def __init__(self, step: Forward, body: Body, plan: Plan) -> None:
        super().__init__(step, body)
        with plan.tracing(whole=True):
            self._compiled = torch.compile(step, **plan.arguments())

    @property
    def ready(self) -> Forward:
        return self.body(self._compiled)

    @contextlib.contextmanager
    def during(self) -> Iterator[Forward]:
        with step_capture.many_shapes():
            yield self.body(self._compiled)


class Nested(Preparation):
    """The whole step is compiled; the code of equal blocks is generated once.

    Blocks are found in the eager run, and marked as regions only while the step runs,
    when torch traces it.
    """

    needs_eager_run = True

    def __init__(
        self, step: Forward, body: Body, plan: Plan, *, roots: list[nn.Module]
    ) -> None:
        super().__init__(step, body)
        self.plan = plan
        self.blocks: list[nn.Module] = []
        self._roots = roots
        self._watches: list[CallRecorder] = []
        self._compiled: list[Any] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        if self.needs_eager_run:
            self._watches = [CallRecorder(root) for root in self._roots]
        with contextlib.ExitStack() as stack:
            for watch in self._watches:
                stack.enter_context(watch)
            yield

    def learn(self) -> None:
        """Finds the blocks and compiles them; raises `NotApplicable` without any."""
        if not self.needs_eager_run:
            return
        watches, self._watches = self._watches, []
        for root, watch in zip(self._roots, watches, strict=True):
            for paths in regions.find(root, watch):
                self.blocks += map(root.get_submodule, paths)
        if not self.blocks:
            names = ", ".join(type(root).__name__ for root in self._roots)
            raise NotApplicable(
                f"no repeated blocks: {names or 'the step'} does not call modules of"
                " the same structure in sequence"
            )
        self.needs_eager_run = False
        self._compile()

    def _compile(self) -> None:
        self._regions = {block: nesting.region(block) for block in self.blocks}
        self._compiled = [torch.compile(self.step, **self.plan.arguments())]

    @contextlib.contextmanager
    def during(self) -> Iterator[Forward]:
        if not self._compiled:  # blocks are not found yet, or they cannot be regions
            yield self.body(self.step)
            return
        with step_capture.many_shapes(), nesting.in_place(self._regions):
            yield self.body(self._compiled[0])


class Regional(Nested):
    """Compiles the repeated blocks, and large functions outside of them."""

    reads_each_shape = True

    def __init__(
        self, step: Forward, body: Body, plan: Plan, *, roots: list[nn.Module]
    ) -> None:
        super().__init__(step, body, plan, roots=roots)
        self.rest: set[CodeType] = set()
        self._launches = Launches()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self._launches = Launches()
        with super().watching(), self._launches:
            yield

    def learn(self) -> None:
        launches, self._launches = self._launches, Launches()
        super().learn()
        self.rest |= launches.large({_code_of(block) for block in self.blocks})

    def _compile(self) -> None:
        arguments = self.plan.arguments()
        with self.plan.tracing(whole=False):
            self._compiled = [
                torch.compile(block._call_impl, **arguments) for block in self.blocks
            ]
        self._around = torch.compile(self.step, **arguments)

    @contextlib.contextmanager
    def apart(self) -> Iterator[Forward]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(step_capture.many_shapes())
            for block, compiled in zip(self.blocks, self._compiled, strict=True):
                stack.enter_context(step_capture.replaced_call(block, compiled))
            yield self.body(self.step)

    @contextlib.contextmanager
    def during(self) -> Iterator[Forward]:
        with self.apart() as plain:
            if not self.rest:
                yield plain
                return
            with step_capture.only_frames_of(self.rest, self.blocks):
                yield self.body(self._around)


class Launches(EagerDispatchMode):
    """Notes each operation inside its context, with the Python code on the stack."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: list[tuple[list[CodeType], str, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if outputs := trees.tensors(result):
            codes = [frame.f_code for frame, _ in traceback.walk_stack(sys._getframe())]
            size = sum(each.numel() * each.itemsize for each in outputs)
            name = func.overloadpacket.__name__
            self._noted.append((codes[:0:-1], name, size))  # outermost first
        return result

    def large(self, blocks: Collection[CodeType]) -> set[CodeType]:
        """The outermost functions without blocks that are worth compiling.

        Only functions outside of torch count, because they can be compiled separately.
        """
        above: set[CodeType] = set()
        for stack, _, _ in self._noted:
            inside = [place for place, code in enumerate(stack) if code in blocks]
            above.update(stack[: min(inside, default=0)])
        operations: Counter[CodeType] = Counter()
        written: Counter[CodeType] = Counter()
        for stack, name, size in self._noted:
            if name in _OWN_KERNELS:
                continue
            for code in stack:
                if code not in above and whose(code.co_filename) in ("user", "library"):
                    operations[code] += 1
                    written[code] += size
                    break
        return {
            code
            for code, count in operations.items()
            if count >= _OPERATIONS and written[code] >= _BYTES and code not in blocks
        }


def prepare(
    step: Forward, body: Body, plan: Plan, modules: list[nn.Module]
) -> Preparation:
    """The preparation for a strategy; `modules` are all that the step can reach."""
    strategy = plan.strategy
    if strategy.form == "eager":
        return Preparation(step, body)
    if strategy.form == "full":
        return Full(step, body, plan)
    inner = {part for each in modules for part in each.children()}
    roots = [each for each in modules if each not in inner]
    kind = Nested if strategy.form == "nested" else Regional
    return kind(step, body, plan, roots=roots)


def _code_of(block: nn.Module) -> CodeType:
    """The code of its forward below decorators."""
    forward: Any = inspect.unwrap(type(block).forward)
    code: CodeType = forward.__code__
    return code


# -- modules as steps -----------------------------------------------------------------


def inference(forward: Forward) -> Forward:
    def answer(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return forward(*args, **kwargs)

    return answer


def with_loss(forward: Forward) -> Forward:
    """Returns the output and its loss: `.loss`, else the mean of its tensors."""

    def output_and_loss(*args: Any, **kwargs: Any) -> tuple[Any, Tensor]:
        output = forward(*args, **kwargs)
        return output, loss_of(output)

    return output_and_loss


def training(output_and_loss: Forward) -> Forward:
    def forward_and_backward(*args: Any, **kwargs: Any) -> Any:
        output, loss = output_and_loss(*args, **kwargs)
        loss.backward()
        return output

    return forward_and_backward


def training_apart(forward: Forward) -> Forward:
    """As `training`, where the loss is not a part of what is compiled."""
    return training(with_loss(forward))


def loss_of(output: Any) -> Tensor:
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    means = [
        tensor.float().mean()
        for tensor in trees.tensors(output)
        if tensor.is_floating_point() and tensor.requires_grad
    ]
    if not means:
        raise UserError(
            "train=True: no floating-point tensor of the output requires a gradient"
        )
    return means[0] if len(means) == 1 else torch.stack(means).mean()
