"""Plans what a strategy compiles in a target.

Takes a strategy, the target and its calls; returns a `Plan`. It runs the calls if it
needs to know the repeated blocks, or the sizes that vary.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from torchproof.records import UserError
from torchproof.strategies import nesting, regions
from torchproof.strategies.call_recorder import (
    CallRecorder,
    Sizes,
    recording_sizes,
    run,
)
from torchproof.strategies.plan import Plan, Site
from torchproof.strategies.source_lines import (
    MODEL,
    RECORDED_ARGUMENTS,
    compiled_by_graph,
    place_of,
)
from torchproof.strategies.strategy import BLOCKS, NotApplicable, Strategy

_NAMED = 4  # how many names a note lists
NOTHING_VARIES = "no size varies over the calls, so there is nothing to mark"

Before = Callable[[int], None] | None


def plan(
    strategy: Strategy,
    fn: Callable[..., Any],
    calls: Sequence[Any],
    *,
    before: Before = None,
) -> Plan:
    """What a strategy compiles in a target.

    If the strategy `observes`, the calls run once in eager, each after `before(index)`,
    and may change the target's state. So plan with one target and apply to another.
    """
    if strategy.form == "eager":
        return Plan()
    if strategy.form in BLOCKS and strategy.graph:
        if not compiled_by_graph(strategy):
            others = ", ".join({*strategy.other_arguments} - {*RECORDED_ARGUMENTS})
            raise NotApplicable(f"{strategy.name} takes no {others} for torch.compile")
        return Plan()  # `torchproof.graph` finds the blocks itself
    if strategy.form == "regional":
        return _regional(strategy, fn, calls, before=before)
    if strategy.form == "nested":
        return _nested(strategy, fn, calls, before=before)
    if strategy.form == "full":
        whole = Plan((Site(MODEL),))
        owner = fn
        method = "forward" if isinstance(fn, nn.Module) else None
    else:
        owner, path = _core(strategy, fn)
        whole = Plan((Site(place_of(path)),))
        method = path.rpartition(".")[2]
    if not strategy.marks:
        return whole
    sizes = Sizes()
    if method is None:
        sizes = _sizes_of(calls)
    else:
        with recording_sizes(owner, method, sizes):
            run(fn, calls, before)
    if not sizes.varying:
        return Plan(whole.sites, NOTHING_VARIES)
    # For a module the wrapper replaces `forward`: a call of the module runs that.
    place = f"{MODEL}.forward" if owner is fn and method == "forward" else None
    return Plan((Site(place or whole.sites[0].place, varying=sizes.varying),))


# -- core ------------------------------------------------------------------------------


def _core(strategy: Strategy, fn: Any) -> tuple[Any, str]:
    """The object that has the method, and the path of the method."""
    if strategy.method is None:
        raise UserError(f"{strategy.name}: name a method, core:METHOD; {_offer(fn)}")
    owner = fn
    path = strategy.method
    *names, last = path.split(".")
    for name in names:
        if not hasattr(owner, name):
            raise UserError(f"{strategy.name}: {_absent(owner, name)}")
        owner = getattr(owner, name)
    method = getattr(owner, last, None)
    if isinstance(method, nn.Module):
        return method, f"{path}.forward"
    if not callable(method):
        raise UserError(f"{strategy.name}: {_absent(owner, last)}")
    return owner, path


def _absent(owner: Any, name: str) -> str:
    near = difflib.get_close_matches(name, _methods(owner), n=1)
    hint = f", did you mean {near[0]}?" if near else ""
    return f"{type(owner).__name__} has no method {name}{hint}; {_offer(owner)}"


def _offer(owner: Any) -> str:
    names = _methods(owner)
    if not names:
        return f"a {type(owner).__name__} has no methods of its own"
    return f"{type(owner).__name__} has {', '.join(names)}"


def _methods(owner: Any) -> list[str]:
    """The object's own public methods, and `forward` of its submodules."""
    inherited = [set(vars(base)) for base in (nn.Module, object, type(_methods))]
    names = {
        name: None
        for kind in type(owner).__mro__
        for name, value in vars(kind).items()
        if callable(value) and not name.startswith("_")
    }
    methods = [name for name in names if not any(name in each for each in inherited)]
    if isinstance(owner, nn.Module):
        methods = ["forward", *(name for name in methods if name != "forward")]
        methods += [
            f"{name}.forward"
            for name, part in owner.named_children()
            if not isinstance(part, nn.ModuleList | nn.ModuleDict)
        ]
    return methods


# -- regional and nested ---------------------------------------------------------------


def _regional(
    strategy: Strategy, fn: Any, calls: Sequence[Any], *, before: Before
) -> Plan:
    root, recorder, blocks = _blocks(fn, calls, before=before)
    sites = []
    for site in blocks:
        sizes = Sizes()
        for path in site.paths if strategy.marks else ():
            sizes.add(recorder.sizes[path])
        sites.append(dataclasses.replace(site, varying=sizes.varying))
    note = _what_stays_eager(root, recorder, sites)
    if strategy.marks and not any(site.varying for site in sites):
        note = f"{note}; {NOTHING_VARIES}"
    return Plan(tuple(sites), note)


def _nested(
    strategy: Strategy, fn: Any, calls: Sequence[Any], *, before: Before
) -> Plan:
    """Plans the blocks, then the whole model; sizes are marked on the whole model."""
    root, _, sites = _blocks(fn, calls, before=before)
    for path in (path for site in sites for path in site.paths):
        nesting.assert_plain(root.get_submodule(path), path)
    note = f"compiled once per kind of block: {_counts(sites)}"
    varying = _sizes_of(calls).varying if strategy.marks else {}
    if strategy.marks and not varying:
        note = f"{note}; {NOTHING_VARIES}"
    place = f"{MODEL}.forward" if varying and root is fn else MODEL
    return Plan((*sites, Site(place, varying=varying)), note)


def _sizes_of(calls: Sequence[Any]) -> Sizes:
    sizes = Sizes()
    for call in calls:
        if isinstance(call, dict):
            sizes.note((), call)
        else:
            sizes.note(call, {})
    return sizes


def _blocks(
    fn: Any, calls: Sequence[Any], *, before: Before
) -> tuple[nn.Module, CallRecorder, list[Site]]:
    """The module that has the blocks, the recorded calls, and one site per region."""
    root = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    if not isinstance(root, nn.Module):
        raise NotApplicable("no repeated blocks: the target is not a module")
    with CallRecorder(root) as recorder:
        run(fn, calls, before)
    blocks = regions.find(root, recorder)
    if not blocks:
        raise NotApplicable(
            f"no repeated blocks: {type(root).__name__} calls no modules of the same"
            " structure in sequence"
        )
    owner = MODEL if root is fn else f"{MODEL}.__self__"
    sites = [
        Site(regions.iteration(root, paths).replace(MODEL, owner), name, paths)
        for paths, name in zip(blocks, _names(root, blocks), strict=True)
    ]
    return root, recorder, sites


def _names(root: nn.Module, blocks: list[tuple[str, ...]]) -> list[str]:
    """The class of each region's blocks, and its path if two have the same name."""
    names = [type(root.get_submodule(paths[0])).__name__ for paths in blocks]
    times = Counter(names)
    return [
        name if times[name] == 1 else f"{name} at {paths[0]}"
        for name, paths in zip(names, blocks, strict=True)
    ]


def _what_stays_eager(
    root: nn.Module, recorder: CallRecorder, sites: list[Site]
) -> str:
    """A note that names what is compiled, and what stays eager."""
    blocks = {path for site in sites for path in site.paths}
    compiled = regions.parameters_in(map(root.get_submodule, blocks))
    share = 1 - compiled / regions.parameters_in([root])
    rest: list[str] = []
    named = blocks | {holder for path in blocks for holder in regions.above(path)}
    for path in sorted(recorder.first_calls, key=lambda path: path.count(".")):
        if path not in named and blocks.union(rest).isdisjoint(regions.above(path)):
            rest.append(path)
    many = len(rest) - _NAMED
    names = ", ".join(rest[:_NAMED]) + (f" and {many} more" if many > 0 else "")
    counts = _counts(sites)
    if not rest:
        return f"compiled one by one: {counts}; only code between them stays eager"
    return (
        f"compiled one by one: {counts}; eager: {names} ({share:.0%} of the parameters)"
    )


def _counts(sites: Sequence[Site]) -> str:
    return ", ".join(f"{len(site.paths)} x {site.name}" for site in sites)
