"""`--artifact caches`: compiles the target as production does and packs torch's caches.

The build and verification processes use the same code path as `torchproof.load`, so
that torch looks its graphs up under the same cache keys.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torchproof import runtime
from torchproof.measure import numerics
from torchproof.packs.deploy import precompiled_builds
from torchproof.records import UserError, one_line, whose
from torchproof.runtime import (
    Unverified,
    cache_install,
    example_inputs,
    graph_origin,
    open_model,
    open_pack,
    warm_up,
)
from torchproof.runtime import source_hash as code
from torchproof.strategies import (
    NotApplicable,
    RecipeSource,
    environment_here,
    fingerprint,
    parse,
    planning,
    recipe,
)
from torchproof.targets import Loaded, Target, calls
from torchproof.torch_private import cache_lookups, marks_of, put_marks, traced_lines

Progress = Callable[[str], None]


def build(loaded: Loaded, stage: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    """Compile every call, fill the stage, and return the manifest's details."""
    train = calls.trains(loaded, job)
    # Before the calls run, which may write to their inputs.
    described = [example_inputs.describe(call) for call in loaded.calls]
    gradients = train or not _runs_without(loaded)
    chosen = _recipe(loaded, job)
    compiled = runtime.compile(loaded.fn, recipe=chosen)
    log = graph_origin.LookupLog()
    files: set[str] = set()
    states = []
    counts = [0]
    with (
        cache_lookups.graph_lookups(log.note),
        traced_lines.traced_lines(lambda code, line: files.add(code.co_filename)),
    ):
        for index, call in enumerate(loaded.calls):
            calls.before(loaded, index)
            states.append(warm_up.state_of(loaded.fn))
            _step(loaded, compiled, call, train=train, gradients=gradients)
            counts.append(len(log.lookups))
    _assert_compiled(compiled, log)
    cache_install.collect(Path(job["cache"]), stage)
    chosen.write(stage / recipe.FILE)
    lookups = graph_origin.pack_lookups(log.lookups)
    (stage / graph_origin.FILE).write_text(json.dumps(lookups, indent=1))
    traced = {file for file in files if whose(file) in ("user", "library")}
    keys = [
        sorted({each.key for each in log.lookups[start:end] if each.key})
        for start, end in itertools.pairwise(counts)
    ]
    pairs = zip(described, states, keys, strict=True)
    return {
        "artifact": "caches",
        "strategy": chosen.strategy.name,
        "train": train,
        "graphs": len(log.graphs),
        "keys": [each.key for each in log.graphs],
        "calls": [
            {
                "inputs": inputs,
                "state": state,
                "gradients": gradients,
                "keys": call_keys,
            }
            for inputs, state, call_keys in pairs
        ],
        "code": code.hashes(traced),
        "config": cache_lookups.nondefault_switches(),
    }


def _runs_without(loaded: Loaded) -> bool:
    """Whether a call runs without gradients, as services call a model."""
    if calls.claims(loaded.fn, "trains_itself"):
        return False
    calls.before(loaded, 0)
    try:
        with torch.no_grad():
            calls.invoke(loaded.fn, loaded.calls[0], train=False)
    except Exception:
        return False  # it runs with gradients, or fails there with a message
    return True


def _recipe(loaded: Loaded, job: Mapping[str, Any]) -> recipe.Recipe:
    if job["recipe"]:
        chosen = recipe.load(job["recipe"])
        if why := RecipeSource(chosen).adopted(loaded.fn).why_not:
            raise UserError(f"{job['recipe']} does not fit this target: {why}")
    else:
        chosen = _made_recipe(loaded, job)
    if chosen.strategy.as_is or not chosen.strategy.compiles:
        name = chosen.strategy.name
        raise UserError(
            f"strategy {name} compiles nothing, so there is no code to pack"
        )
    if chosen.strategy.graph and chosen.train:
        raise UserError(
            f"strategy {chosen.strategy.name} records a whole training step as a CUDA"
            " graph, which cannot be packed: choose a strategy without +graph"
        )
    return chosen


def _made_recipe(loaded: Loaded, job: Mapping[str, Any]) -> recipe.Recipe:
    strategy = parse(job["strategy"])
    try:
        plan = planning.plan(
            strategy,
            loaded.fn,
            loaded.calls,
            before=lambda index: calls.before(loaded, index),
        )
    except NotApplicable as error:
        raise UserError(f"strategy {strategy.name} does not apply: {error}") from None
    return recipe.Recipe(
        strategy,
        plan,
        train=bool(job["train"]),
        environment=environment_here(loaded.fn),
        model=fingerprint(loaded.fn),
    )


def _step(
    loaded: Loaded, compiled: Any, call: Any, *, train: bool, gradients: bool
) -> None:
    if train:
        calls.forget_gradients(loaded.fn, call)
    try:
        with warm_up.gradient_mode(gradients):
            calls.invoke(compiled, call, train=train)
    except Exception as error:
        message = one_line(f"{type(error).__name__}: {error}", 300)
        raise UserError(f"the target fails: {message}") from error


def _assert_compiled(compiled: Any, log: graph_origin.LookupLog) -> None:
    status = runtime.status(compiled)
    for item in status.fallbacks:
        raise UserError(f"{item.what} runs eager ({item.kind}): {item.why}")
    if not log.graphs:
        why = "; ".join(dict.fromkeys(log.bypassed)) or "nothing was compiled"
        raise UserError(f"there is no compiled code to pack: {why}")


# -- verification in a fresh process ---------------------------------------------------


def verify(target: Target, job: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Load the pack as a service does, and compare its outputs on new inputs."""
    contents = open_pack(job["stage"])
    details = contents.manifest.details
    new_calls = _fresh_calls(target, job, details)
    reference = _reference(target, job, new_calls, gradients=_gradients(details))
    progress("loading")
    loaded = replace(calls.fresh(target, job), calls=new_calls)
    compiled = open_model.open_model(contents, loaded.fn, warm=True)
    progress("checking guards against changes")
    unnoticed = precompiled_builds.unnoticed(contents, compiled)
    report = runtime.status(compiled).pack or {}
    _assert_all(report, details)
    log = graph_origin.LookupLog()
    with cache_lookups.graph_lookups(log.note):
        answers = _answers(loaded, compiled, details=details)
    comparison = reference.compare(answers)
    if comparison.verdict not in ("same", "rounding"):
        raise Unverified(
            f"in a fresh process the outputs differ from eager's at {comparison.where}:"
            f" {comparison.why or comparison.verdict}"
        )
    return {
        "graphs": report["graphs"],
        "of": report["of"],
        "seconds": report["seconds"],
        "numerics": comparison.to_json(),
        "notes": report["notes"],
        "untraced": report["untraced"],
        "unnoticed": unnoticed,
    }


def _gradients(details: Mapping[str, Any]) -> bool:
    return any(call["gradients"] for call in details["calls"])


def _assert_all(report: Mapping[str, Any], details: Mapping[str, Any]) -> None:
    unwarmed = [each for each in details["calls"] if "why_not" in each["inputs"]]
    if report["misses"] or (report["graphs"] != report["of"] and not unwarmed):
        why = "; ".join((*report["misses"], *report["notes"])) or "no reason is known"
        raise Unverified(
            f"in a fresh process only {report['graphs']} of {report['of']} graphs came"
            f" from the pack's caches: {why}"
        )


def _fresh_calls(
    target: Target, job: dict[str, Any], details: Mapping[str, Any]
) -> list[Any]:
    """Calls with new values; the target's own call where none can be generated.

    A generated call that fails in eager says nothing about the pack, and is not used.
    """
    loaded = calls.fresh(target, job)
    new_calls = []
    for index, details_of_call in enumerate(details["calls"]):
        calls.before(loaded, index)
        call = loaded.calls[index]
        if "why_not" not in details_of_call["inputs"]:
            fresh = example_inputs.make(details_of_call["inputs"], seed=index + 1)
            with (
                contextlib.suppress(Exception),
                warm_up.gradient_mode(details_of_call["gradients"]),
            ):
                calls.invoke(loaded.fn, fresh, train=False)
                call = example_inputs.make(details_of_call["inputs"], seed=index + 1)
        new_calls.append(call)
    return new_calls


def _reference(
    target: Target, job: dict[str, Any], new_calls: Sequence[Any], *, gradients: bool
) -> numerics.Reference:
    train = bool(job["train"])

    def make() -> Loaded:
        return replace(calls.fresh(target, job), calls=[_copied(c) for c in new_calls])

    def run(loaded: Loaded) -> calls.Answers:
        with warm_up.gradient_mode(gradients):
            follows = calls.trains(loaded, job)
            return calls.answers(loaded, loaded.fn, train=train, backward=follows)

    return numerics.reference(make, run)


def _answers(
    loaded: Loaded, compiled: Any, *, details: Mapping[str, Any]
) -> calls.Answers:
    copy = replace(loaded, calls=[_copied(call) for call in loaded.calls])
    with warm_up.gradient_mode(_gradients(details)):
        return calls.answers(copy, compiled, train=details["train"])


def _copied(call: Any) -> Any:
    """A copy of a call with new tensors, since a call may write to them."""
    if isinstance(call, torch.Tensor):
        again = put_marks(call.detach().clone(), marks_of(call))
        return again.requires_grad_() if call.requires_grad else again
    if isinstance(call, Mapping):
        return {key: _copied(value) for key, value in call.items()}
    if type(call) in (list, tuple):
        return type(call)(_copied(value) for value in call)
    return call
