"""What a target is made of: blocks, parts, and sizes that vary over its calls."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Set
from typing import Any

import torch
from torch import nn

from torchproof.measure.model_facts.subjects import Subject, root_of
from torchproof.strategies import (
    NotApplicable,
    Sizes,
    fingerprint,
    parse,
    regions,
    tensors_in,
)
from torchproof.targets import calls

CORE_SHARE = 0.2  # of the parameters: a part with less is not worth compiling alone
_CORES = 4


def parameters(subject: Subject) -> Iterator[dict[str, Any]]:
    if subject.root is not None:
        yield {"parameters": sum(p.numel() for p in subject.root.parameters())}


def structure(subject: Subject) -> Iterator[dict[str, Any]]:
    """What is seen of a target made anew, before its calls and while they run."""
    loaded = subject.made_anew()
    yield {"fingerprint": fingerprint(loaded.fn)}  # calls may add buffers
    root = root_of(loaded.fn)
    seen = Seen(root) if root is not None else None
    try:
        plan = parse("regional").plan(
            loaded.fn, loaded.calls, lambda index: calls.before(loaded, index)
        )
        blocks = {site.name: site.paths for site in plan.regions}
    except NotApplicable:
        blocks = {}
    yield {"blocks": {name: len(paths) for name, paths in blocks.items()}}
    repeated = {path for paths in blocks.values() for path in paths}
    yield {"core": seen.cores(repeated) if seen and root is loaded.fn else []}
    if seen is not None:
        kinds = {regions.structure(module) for module in seen.modules}
        yield {"distinct_modules": len(kinds)}


def shapes(subject: Subject) -> Iterator[dict[str, Any]]:
    """Which sizes vary from call to call, and how many shapes the calls have."""
    sizes, kinds = Sizes(), set()
    for call in subject.loaded.calls:
        sizes.note(*((), call) if isinstance(call, dict) else (call, {}))
        named = call if isinstance(call, dict) else dict(enumerate(call))
        kinds.add(tuple((way, t.shape, t.dtype) for way, t in tensors_in(named)))
    varying = [[_named(way), [*which]] for way, which in sizes.varying.items()]
    yield {"varying": varying, "shapes": len(kinds)}


def _named(way: tuple[int | str, ...]) -> str:
    """As `tokens`, `states.1`, or `argument 0` where it has no name."""
    first = way[0] if isinstance(way[0], str) else f"argument {way[0]}"
    return ".".join(map(str, (first, *way[1:])))


# -- parts that could be compiled alone ------------------------------------------------


class Seen:
    """Which modules of a target are called, and which methods by its forward.

    It stays in the target, which is to be thrown away.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.modules: set[nn.Module] = set()
        self.methods: set[str] = set()
        for module in root.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                module.register_forward_pre_hook(self._note_module)
        for name in _named_in(root, "forward"):
            if _is_own_method(root, name):
                setattr(root, name, self._noting(name))

    def _note_module(self, module: nn.Module, inputs: Any) -> None:
        self.modules.add(module)

    def _noting(self, name: str) -> Callable[..., Any]:
        method = getattr(self.root, name)

        @functools.wraps(method)
        def noting(*args: Any, **kwargs: Any) -> Any:
            self.methods.add(name)
            return method(*args, **kwargs)

        return noting

    def cores(self, repeated: Set[str]) -> list[str]:
        """Parts and methods that hold much of the model, the largest first.

        What is `repeated` is compiled block by block.
        """
        whole = regions.parameters_in([self.root])
        worth = {
            name: share
            for name, modules in self._held()
            if (share := regions.parameters_in(modules) / whole) >= CORE_SHARE
            and name not in repeated
        }
        return sorted(worth, key=lambda name: -worth[name])[:_CORES]

    def _held(self) -> Iterator[tuple[str, list[nn.Module]]]:
        """Direct parts and methods that were called, and what modules they are of."""
        parts = dict(self.root.named_children())
        for name, part in parts.items():
            if part in self.modules and not _is_single(part):
                yield name, [part]
        for name in sorted(self.methods):
            named = _reached(self.root, name, set())
            yield name, [parts[part] for part in parts if part in named]


def _is_single(part: nn.Module) -> bool:
    """One operation alone has nothing to fuse."""
    own = next(part.children(), None) is None
    return own and type(part).__module__.startswith("torch.nn.")


def _reached(root: nn.Module, method: str, seen: set[str]) -> set[str]:
    """What a method names of self, and the methods that it calls."""
    if method in seen:
        return set()
    seen.add(method)
    named = set(_named_in(root, method))
    inner = (_reached(root, n, seen) for n in named if _is_own_method(root, n))
    return named.union(*inner)


def _is_own_method(root: nn.Module, name: str) -> bool:
    method = getattr(type(root), name, None)
    return inspect.isfunction(method) and not hasattr(nn.Module, name)


def _named_in(root: nn.Module, method: str) -> list[str]:
    """What a method's source reads from its object, in the order of the lines."""
    function = inspect.unwrap(getattr(type(root), method))
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return []
    own = next(iter(inspect.signature(function).parameters), None)
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == own
    ]
    found.sort(key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.attr for node in found))
