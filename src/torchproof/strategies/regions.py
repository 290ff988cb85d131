"""The repeated blocks of a model, found by structure and by how they were called.

Blocks of one region have the same class, the same parts and the same parameters and
buffers but for their values, and one is fed by another of the same call of their
parent. The outermost such level counts. One block that is fed by itself, as in models
that share the weights of all layers, is a region where there is no other.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from torchproof.strategies.call_recorder import Watch
from torchproof.strategies.source_lines import MODEL, listed

# A module without parts is a block only if it and its like hold such a share of the
# model's parameters: hand-written layers do, hand-written norms and activations do not.
LEAF_SHARE = 0.1


def find(root: nn.Module, watch: Watch) -> list[tuple[str, ...]]:
    """The paths of the blocks of each region, in the order of their first calls."""
    alike = defaultdict(list)
    for path in watch.sights:
        alike[structure(root.get_submodule(path))].append(path)
    chains = [_in_sequence(paths, watch) for paths in alike.values()]
    regions = _outermost(c for c in chains if _is_worthwhile(root, c))
    taken = {path for region in regions for path in region}
    holders = {holder for path in taken for holder in above(path)}
    for path in watch.sights:
        if path not in watch.looped or path in taken | holders:
            continue
        if taken.isdisjoint(above(path)) and _is_worthwhile(root, [path]):
            regions.append((path,))
            taken.add(path)
    return regions


def structure(module: nn.Module) -> tuple[Any, ...]:
    """What two modules must have in common to run the same compiled code."""
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


def _in_sequence(paths: list[str], watch: Watch) -> list[str]:
    """Those that feed, or are fed by, another one in the same call of their parent."""
    siblings = defaultdict(list)
    for path in paths:
        siblings[watch.sights[path].parent].append(path)
    linked = set()
    for together in siblings.values():
        bits = functools.reduce(operator.or_, map(watch.bits.__getitem__, together))
        fed = functools.reduce(operator.or_, (watch.sights[p].fed_by for p in together))
        for path in together:
            if watch.sights[path].fed_by & bits or watch.bits[path] & fed:
                linked.add(path)
    return [path for path in paths if path in linked]


def _is_worthwhile(root: nn.Module, paths: list[str]) -> bool:
    """A single operation has nothing to fuse, a norm of one's own little."""
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
    """How many numbers the parameters hold, each counted once; at least 1."""
    own = {id(p): p.numel() for module in modules for p in module.parameters()}
    return max(1, sum(own.values()))


def _outermost(chains: Iterable[list[str]]) -> list[tuple[str, ...]]:
    kept = list(chains)
    every = {path for chain in kept for path in chain}
    outer = [tuple(p for p in chain if every.isdisjoint(above(p))) for chain in kept]
    return [paths for paths in outer if paths]


def above(path: str) -> Iterator[str]:
    """The paths of the modules that hold this one, from the inside out."""
    while path := path.rpartition(".")[0]:
        yield path


# -- as Python -------------------------------------------------------------------------


def iteration(root: nn.Module, paths: tuple[str, ...]) -> str:
    """What a loop over these blocks goes over: a list's name, part of one, or all."""
    parts = [
        _slice(root, owner, [path.rpartition(".")[2] for path in held])
        for owner, held in itertools.groupby(paths, lambda p: p.rpartition(".")[0])
    ]
    names = list(itertools.chain.from_iterable(parts))
    if len(names) == 1 and names[0].startswith("*"):
        return names[0][1:]
    return listed(names)


def _slice(root: nn.Module, owner: str, names: list[str]) -> list[str]:
    """Blocks of one holder: `*` and the holder if it is a list, else one by one."""
    holder, place = root.get_submodule(owner), expression(root, owner)
    dot = owner and f"{owner}."
    if len(names) > 1 and isinstance(holder, nn.ModuleList | nn.Sequential):
        begin, end = int(names[0]), int(names[0]) + len(names)
        if names == [str(number) for number in range(begin, end)]:
            if len(names) == len(holder):
                return [f"*{place}"]
            return [f"*{place}[{begin or ''}:{'' if end == len(holder) else end}]"]
    return [expression(root, f"{dot}{name}") for name in names]


def expression(root: nn.Module, path: str) -> str:
    """A module by its path, as one writes it: MODEL.blocks[0], if that leads there."""
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
