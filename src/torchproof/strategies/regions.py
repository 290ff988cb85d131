"""Finds the repeated blocks of a model, by structure and by how they are called.

Blocks of one region have the same class, the same submodules, and parameters and
buffers of the same shapes and types. One block feeds another in the same call of their
parent. The outermost such level counts. A single block that feeds itself, as in models
that share weights between all layers, is a region if there is no other.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from torchproof.strategies.call_recorder import CallRecorder
from torchproof.strategies.source_lines import MODEL, listed

# A module without submodules is a block only if it and its equals have this share of
# the model's parameters: hand-written layers do, norms and activations do not.
LEAF_SHARE = 0.1


def find(root: nn.Module, recorder: CallRecorder) -> list[tuple[str, ...]]:
    """The paths of the blocks of each region, in the order of their first calls."""
    alike = defaultdict(list)
    for path in recorder.first_calls:
        alike[structure(root.get_submodule(path))].append(path)
    chains = [_in_sequence(paths, recorder) for paths in alike.values()]
    regions = _outermost(c for c in chains if _is_worthwhile(root, c))
    used = {path for region in regions for path in region}
    holders = {holder for path in used for holder in above(path)}
    for path in recorder.first_calls:
        if path not in recorder.looped or path in used | holders:
            continue
        if used.isdisjoint(above(path)) and _is_worthwhile(root, [path]):
            regions.append((path,))
            used.add(path)
    return regions


def structure(module: nn.Module) -> tuple[Any, ...]:
    """What two modules must have in common to share compiled code."""
    parts = tuple((name, type(part)) for name, part in module.named_modules())
    tensors = itertools.chain(
        module.named_parameters(remove_duplicate=False),
        module.named_buffers(remove_duplicate=False),
    )
    kinds = tuple(
        (name, tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad)
        for name, tensor in tensors
    )
    return parts, kinds


def _in_sequence(paths: list[str], recorder: CallRecorder) -> list[str]:
    """The blocks that feed each other in the same call of their parent."""
    siblings = defaultdict(list)
    for path in paths:
        siblings[recorder.first_calls[path].parent].append(path)
    linked = set()
    for together in siblings.values():
        bits = functools.reduce(operator.or_, map(recorder.bits.__getitem__, together))
        fed = functools.reduce(
            operator.or_, (recorder.first_calls[p].fed_by for p in together)
        )
        for path in together:
            if recorder.first_calls[path].fed_by & bits or recorder.bits[path] & fed:
                linked.add(path)
    return [path for path in paths if path in linked]


def _is_worthwhile(root: nn.Module, paths: list[str]) -> bool:
    """Whether compiling can pay off: a single operation has little to fuse."""
    if not paths:
        return False
    module = root.get_submodule(paths[0])
    if next(module.children(), None) is not None:
        return True
    if type(module).__module__.startswith("torch.nn."):
        return False
    share = parameters_in(map(root.get_submodule, paths)) / parameters_in([root])
    return share >= LEAF_SHARE


def parameters_in(modules: Iterable[nn.Module]) -> int:
    """The number of elements of all parameters, each counted once; at least 1."""
    sizes = {id(p): p.numel() for module in modules for p in module.parameters()}
    return max(1, sum(sizes.values()))


def _outermost(chains: Iterable[list[str]]) -> list[tuple[str, ...]]:
    every_chain = list(chains)
    every = {path for chain in every_chain for path in chain}
    outer = [
        tuple(path for path in chain if every.isdisjoint(above(path)))
        for chain in every_chain
    ]
    return [paths for paths in outer if paths]


def above(path: str) -> Iterator[str]:
    """The paths of the modules that contain this one, from the inside out."""
    while path := path.rpartition(".")[0]:
        yield path


# -- Python expressions ----------------------------------------------------------------


def iteration(root: nn.Module, paths: tuple[str, ...]) -> str:
    """The iterable of a loop over these blocks: a list, a slice of one, or a tuple."""
    parts = [
        _slice(root, owner, [path.rpartition(".")[2] for path in members])
        for owner, members in itertools.groupby(paths, lambda p: p.rpartition(".")[0])
    ]
    names = list(itertools.chain.from_iterable(parts))
    if len(names) == 1 and names[0].startswith("*"):
        return names[0][1:]
    return listed(names)


def _slice(root: nn.Module, owner: str, names: list[str]) -> list[str]:
    """Blocks of one container: `*` and a slice if it is a list, else one by one."""
    holder = root.get_submodule(owner)
    place = expression(root, owner)
    dot = owner and f"{owner}."
    if len(names) > 1 and isinstance(holder, nn.ModuleList | nn.Sequential):
        begin, end = int(names[0]), int(names[0]) + len(names)
        if names == [str(number) for number in range(begin, end)]:
            if len(names) == len(holder):
                return [f"*{place}"]
            return [f"*{place}[{begin or ''}:{'' if end == len(holder) else end}]"]
    return [expression(root, f"{dot}{name}") for name in names]


def expression(root: nn.Module, path: str) -> str:
    """The Python expression for a module: MODEL.blocks[0], or `get_submodule`."""
    if not path:
        return MODEL
    steps = list(_steps(root, path))
    if None in steps:
        return f"{MODEL}.get_submodule({path!r})"
    return MODEL + "".join(filter(None, steps))


def _steps(module: nn.Module, path: str) -> Iterator[str | None]:
    for name in path.split("."):
        inner = module.get_submodule(name)
        if name.isdecimal() and isinstance(module, nn.ModuleList | nn.Sequential):
            yield f"[{name}]"
        elif name.isidentifier() and getattr(module, name) is inner:
            yield f".{name}"
        else:
            yield None
        module = inner
