"""Applies a strategy to a target, and counts the compilations of its regions.

Takes a strategy, a target and a plan. Returns an `Applied`: the target compiled by the
strategy's own source lines, and a record of each compilation of a region.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from torchproof import torch_private
from torchproof.records import Namespace, UserError
from torchproof.strategies import planning, source_lines
from torchproof.strategies.plan import Plan, Site
from torchproof.strategies.source_lines import EXAMPLE
from torchproof.strategies.strategy import NotApplicable, Strategy
from torchproof.torch_private import recompiles, subgraphs, trees

NAME = "model"
# Backends that torch lists even if the package they need is not installed.
_NEEDS = {"openxla": "torch_xla", "openxla_eval": "torch_xla", "tvm": "tvm"}


@dataclass(frozen=True)
class Compilation:
    """One compilation of a block's code.

    `circumstances` are the code object, the shapes and types of the inputs, and whether
    the block trains and gradients are enabled. `reasons` say why no earlier compiled
    code fitted.
    """

    path: str
    circumstances: tuple[Any, ...]
    reasons: tuple[str, ...]
    refused: bool  # there was code already, and torch compiled no more


@dataclass(frozen=True)
class Applied:
    """A compiled target: `fn` to call, and the `source` lines that made it.

    The lines are written from `plan` and call the target `model`. A `whole_step` runs
    its own loss and backward.
    """

    fn: Callable[..., Any]
    source: str
    plan: Plan = field(default_factory=Plan)
    root: nn.Module | None = None
    compilations: list[Compilation] = field(default_factory=list)
    whole_step: bool = False
    nested: bool = False  # the regions are parts of one graph

    @property
    def regions(self) -> tuple[Site, ...]:
        return self.plan.regions

    @property
    def note(self) -> str | None:
        return self.plan.note

    @property
    def falls_back(self) -> tuple[str, ...]:
        """Why calls were not replayed from the strategy's CUDA graph so far."""
        return tuple(map(str, getattr(self.fn, "falls_back", ())))

    @contextlib.contextmanager
    def recording_compilations(self) -> Iterator[None]:
        """Records compilations of the blocks; other calls pay nothing."""
        paths = {
            self.root.get_submodule(path): path
            for region in self.regions
            for path in region.paths
            if self.root is not None
        }
        if self.nested:
            with subgraphs.each_graph(lambda graphs: self._note(graphs, paths)):
                yield
            return
        reasons: list[str] = []

        def convert(
            go_on: Callable[[], Any], request: torch_private.FrameRequest
        ) -> Any:
            block = _owner(request.frame)
            if not isinstance(block, nn.Module) or block not in paths:
                return go_on()
            circumstances = _circumstances(block, request.frame)
            reasons.clear()
            answer = go_on()
            refused = answer.guarded_code is None
            if request.is_recompile or not refused:
                self.compilations.append(
                    Compilation(paths[block], circumstances, tuple(reasons), refused)
                )
            return answer

        with (
            torch_private.frame_callbacks(convert),
            recompiles.reasons(reasons.extend),
        ):
            yield

    def _note(
        self, graphs: list[subgraphs.Subgraph], paths: dict[nn.Module, str]
    ) -> None:
        """Records each region of one graph as a compilation of a block's code."""
        by_id = {id(block): path for block, path in paths.items()}
        graph = len(self.compilations)  # regions of two graphs are not compared
        for each in graphs:
            for path in {by_id[number] for number in each.modules & by_id.keys()}:
                circumstances = (graph, *each.inputs)
                self.compilations.append(Compilation(path, circumstances, (), False))


def apply(
    strategy: Strategy,
    fn: Callable[..., Any],
    calls: Sequence[Any],
    plan: Plan | None = None,
    *,
    train: bool = False,
) -> Applied:
    """Compiles the target by running the lines that `source_lines` writes."""
    plan = planning.plan(strategy, fn, calls) if plan is None else plan
    source = source_lines.lines(strategy, NAME, plan, train=train)
    if backend := strategy.arguments.get("backend"):
        assert_backend(backend)
    if strategy.graph and not on_cuda(fn, calls):
        raise NotApplicable("CUDA graphs need a CUDA device")
    names: Namespace = {NAME: fn, EXAMPLE: calls[0] if calls else None}
    try:
        exec(compile(source, f"<strategy {strategy.name}>", "exec"), names)
    except Exception as error:
        if strategy.graph or isinstance(error, UserError):
            raise  # recording a graph runs the target, which may have raised
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"{strategy.name}: torch rejects it: {why}") from error
    root = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    return Applied(
        fn=names[NAME],
        source=source,
        plan=plan,
        root=root if isinstance(root, nn.Module) else None,
        whole_step=strategy.graph and train,
        nested=strategy.form == "nested",
    )


def on_cuda(fn: Callable[..., Any], calls: Sequence[Any]) -> bool:
    """Whether the target computes on a CUDA device."""
    weights = fn.parameters() if isinstance(fn, nn.Module) else ()
    return any(tensor.is_cuda for tensor in (*weights, *trees.tensors(list(calls))))


def assert_backend(name: str) -> None:
    """Raises a `UserError` that lists the installed backends if this one is not."""
    installed = [
        backend
        for backend in torch.compiler.list_backends(exclude_tags=())
        if backend not in _NEEDS or importlib.util.find_spec(_NEEDS[backend])
    ]
    if name in installed:
        return
    near = difflib.get_close_matches(name, installed, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    listed = ", ".join(each for each in installed if "TESTING_ONLY" not in each)
    raise UserError(f"no backend {name!r} is installed: {hint}installed are {listed}")


def _owner(frame: Any) -> Any:
    """The first positional argument of the function that a frame runs."""
    code = frame.f_code
    if code.co_argcount:
        return frame.f_locals.get(code.co_varnames[0])
    if code.co_flags & inspect.CO_VARARGS:  # a decorator's `*args`
        rest = frame.f_locals.get(code.co_varnames[code.co_kwonlyargcount])
        return rest[0] if rest else None
    return None


def _circumstances(block: nn.Module, frame: Any) -> tuple[Any, ...]:
    arguments = [value for value in frame.f_locals.values() if value is not block]
    shapes = ((tensor.shape, tensor.dtype) for tensor in trees.tensors(arguments))
    return (frame.f_code, *shapes, block.training, torch.is_grad_enabled())
