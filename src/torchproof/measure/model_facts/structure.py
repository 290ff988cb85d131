"""The structure of a target: blocks, parts, and sizes that vary over its calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchproof.strategies import (
    NotApplicable,
    Sizes,
    fingerprint,
    parse,
    regions,
)
from torchproof.targets import Loaded, calls
from torchproof.torch_private import trees

CORE_SHARE = 0.2  # of the parameters; a smaller part is not worth compiling alone
_CORES = 4


@dataclass(frozen=True)
class Subject:
    """A warm target; `run` runs all its calls and returns the milliseconds."""

    loaded: Loaded
    device: str
    run: Callable[[], float]
    rebuild: Callable[[], Loaded]
    # Whether a rank wants another pass, as all ranks decide it together.
    goes_on: Callable[[bool], bool] = bool

    @property
    def count(self) -> int:
        return len(self.loaded.calls)

    @property
    def root(self) -> nn.Module | None:
        """The module that is called, directly or through a method."""
        return root_of(self.loaded.fn)


def root_of(fn: Any) -> nn.Module | None:
    """Returns the module that a callable is, or is a method of."""
    owner = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def parameters(subject: Subject) -> Iterator[dict[str, Any]]:
    if subject.root is not None:
        yield {"parameters": sum(p.numel() for p in subject.root.parameters())}


def structure(subject: Subject) -> Iterator[dict[str, Any]]:
    """Inspects a new target before its calls and while they run."""
    loaded = subject.rebuild()
    yield {"fingerprint": fingerprint(loaded.fn)}  # calls may add buffers
    root = root_of(loaded.fn)
    recorder = CallRecorder(root) if root is not None else None
    try:
        plan = parse("regional").plan(
            loaded.fn, loaded.calls, lambda index: calls.before(loaded, index)
        )
        blocks = {site.name: site.paths for site in plan.regions}
    except NotApplicable:
        blocks = {}
    yield {"blocks": {name: len(paths) for name, paths in blocks.items()}}
    repeated = {path for paths in blocks.values() for path in paths}
    yield {"core": recorder.cores(repeated) if recorder and root is loaded.fn else []}
    if recorder is not None:
        kinds = {regions.structure(module) for module in recorder.modules}
        yield {"distinct_modules": len(kinds)}


def shapes(subject: Subject) -> Iterator[dict[str, Any]]:
    """Finds which sizes vary from call to call, and counts the input shapes."""
    sizes, signatures = Sizes(), set()
    for call in subject.loaded.calls:
        sizes.note(*((), call) if isinstance(call, dict) else (call, {}))
        named = call if isinstance(call, dict) else dict(enumerate(call))
        signatures.add(
            tuple((path, t.shape, t.dtype) for path, t in trees.tensor_paths(named))
        )
    varying = [
        [_argument_name(path), [*which]] for path, which in sizes.varying.items()
    ]
    yield {"varying": varying, "shapes": len(signatures)}


def _argument_name(path: tuple[int | str, ...]) -> str:
    """Returns `tokens`, `states.1`, or `argument 0` if there is no name."""
    first = path[0] if isinstance(path[0], str) else f"argument {path[0]}"
    return ".".join(map(str, (first, *path[1:])))


# -- parts to compile alone ------------------------------------------------------------


class CallRecorder:
    """Records which modules of a target are called, and by which methods of its root.

    Its hooks stay in the target, so the target must be discarded.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.modules: set[nn.Module] = set()
        self.methods: dict[str, set[nn.Module]] = {}  # the modules that each calls
        self._method: str | None = None  # that runs; other methods are parts of it
        for module in root.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                module.register_forward_pre_hook(self._note_module)
        scripted = isinstance(root, torch.jit.ScriptModule)
        for name, _ in inspect.getmembers(type(root), inspect.isfunction):
            if not (scripted or hasattr(nn.Module, name)):
                setattr(root, name, self._recording(name, getattr(root, name)))

    def _note_module(self, module: nn.Module, inputs: Any) -> None:
        self.modules.add(module)
        if self._method is not None:
            self.methods[self._method].add(module)

    def _recording(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def recording(*args: Any, **kwargs: Any) -> Any:
            if self._method is not None:
                return method(*args, **kwargs)
            self.methods.setdefault(name, set())
            self._method = name
            try:
                return method(*args, **kwargs)
            finally:
                self._method = None

        return recording

    def cores(self, repeated: Set[str]) -> list[str]:
        """Returns parts and methods with many parameters, the largest first.

        Parts in `repeated` are left out; they are compiled block by block.
        """
        whole = regions.parameters_in([self.root])
        shares = {
            name: share
            for name, modules in self._called_parts()
            if (share := regions.parameters_in(modules) / whole) >= CORE_SHARE
            and name not in repeated
        }
        return sorted(shares, key=lambda name: -shares[name])[:_CORES]

    def _called_parts(self) -> Iterator[tuple[str, list[nn.Module]]]:
        """Yields the called children and methods, with the modules that each uses."""
        for name, part in self.root.named_children():
            if part in self.modules and not _is_single(part):
                yield name, [part]
        for name in sorted(self.methods):
            yield name, [*self.methods[name]]


def _is_single(part: nn.Module) -> bool:
    """Whether the part is a single operation, which has nothing to fuse."""
    is_leaf = next(part.children(), None) is None
    return is_leaf and type(part).__module__.startswith("torch.nn.")
