"""`--artifact caches`: compiles the target as production does and packs torch's caches.

The build and verification processes use the same code path as `torchproof.load`, so
that torch looks its graphs up under the same cache keys.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torchproof import runtime
from torchproof.measure import numerics
from torchproof.packs.deploy import PackJob, Progress, precompiled, rank_jobs
from torchproof.records import JsonObject, UserError, one_line, whose
from torchproof.runtime import (
    CachesDetails,
    PackedCall,
    Unverified,
    cache_install,
    compatibility,
    example_inputs,
    open_model,
    open_pack,
    read_details,
    source_hash,
    warm_up,
)
from torchproof.strategies import (
    NotApplicable,
    RecipeSource,
    environment_here,
    fingerprint,
    parse,
    planning,
    recipe,
)
from torchproof.targets import Loaded, calls
from torchproof.torch_private import (
    cache_lookups,
    graphs_without_source_lines,
    marks_of,
    prebuilt,
    process_groups,
    put_marks,
    traced_lines,
    trees,
)


def build(loaded: Loaded, job: PackJob, progress: Progress) -> CachesDetails:
    """Compile every call, fill the stage, and return the manifest's details."""
    stage = Path(job.stage)
    train = calls.trains(loaded, job.run)
    # Before the calls run, which may write to their inputs.
    described = [example_inputs.describe(call) for call in loaded.calls]
    gradients = train or not _runs_without(loaded)
    chosen = _recipe(loaded, job)
    compiled = runtime.compile(loaded.fn, recipe=chosen)
    files: set[str] = set()
    packed: list[PackedCall] = []
    with (
        graphs_without_source_lines(),
        cache_lookups.graph_lookups(job.ranks) as log,
        traced_lines.traced_lines(lambda code, line: files.add(code.co_filename)),
    ):
        for index, call in enumerate(loaded.calls):
            calls.before(loaded, index)
            state, seen = warm_up.state_of(loaded.fn), len(log.lookups)
            _step(loaded, compiled, call, train=train, gradients=gradients)
            keys = sorted({each.key for each in log.lookups[seen:] if each.key})
            packed.append(PackedCall(described[index], state, gradients, tuple(keys)))
    _assert_compiled(compiled, log)
    cache_install.collect(Path(job.cache), stage)
    chosen.write(stage / recipe.FILE)
    traced = {file for file in files if whose(file) in ("user", "library")}
    device = compatibility.device_of(loaded.fn) or job.run.device or "cpu"
    details = CachesDetails(
        strategy=chosen.strategy.name,
        train=train,
        graphs=tuple(str(each.key) for each in log.graphs),
        calls=tuple(packed),
        code=source_hash.hashes(traced),
        place=replace(
            compatibility.place_here(device), vector_sets=prebuilt.vector_sets()
        ),
        collectives=runtime.compiled_forward_of(compiled).engine.has_collectives,
        world_size=process_groups.world_size(),
    )
    progress("precompiling calls")
    return precompiled.write(job, details)


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


def _recipe(loaded: Loaded, job: PackJob) -> recipe.Recipe:
    if job.recipe:
        chosen = recipe.load(job.recipe)
        if why := RecipeSource(chosen).adopted(loaded.fn).why_not:
            raise UserError(f"{job.recipe} does not fit this target: {why}")
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


def _made_recipe(loaded: Loaded, job: PackJob) -> recipe.Recipe:
    strategy = parse(job.strategy)
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
        train=job.run.train,
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


def _assert_compiled(compiled: Any, log: cache_lookups.LookupLog) -> None:
    status = runtime.status(compiled)
    for item in status.fallbacks:
        raise UserError(f"{item.what} runs eager ({item.kind}): {item.why}")
    if not log.graphs:
        why = "; ".join(dict.fromkeys(log.bypassed)) or "nothing was compiled"
        raise UserError(f"there is no compiled code to pack: {why}")


# -- verification in a fresh process ---------------------------------------------------


def verify(job: PackJob, progress: Progress) -> JsonObject:
    """Load the pack as a service does, and compare its outputs on new inputs."""
    contents = open_pack(job.stage)
    details = read_details(CachesDetails, contents)
    job = replace(job, run=calls.resolved(job.run))
    new_calls = _fresh_calls(job, details)
    gradients = any(call.gradients for call in details.calls)
    reference = _reference(job, new_calls, gradients=gradients)
    progress("loading")
    loaded = replace(rank_jobs.fresh(job.run), calls=new_calls)
    compiled = open_model.open_model(contents, loaded.fn, warm=True)
    for item in runtime.status(compiled).fallbacks:
        raise Unverified(
            f"in a fresh process {item.what} runs eager ({item.kind}): {item.why}"
        )
    report = runtime.status(compiled).pack or {}
    _assert_all(report, details.calls)
    copy = replace(loaded, calls=[_copied(call) for call in loaded.calls])
    compiled_before = len(runtime.status(compiled).compilations)
    with warm_up.gradient_mode(gradients):
        answers = calls.answers(copy, compiled, train=details.train)
    again = runtime.status(compiled).compilations[compiled_before:]
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
        "notes": [*report["notes"], *map(_compiled_again, again)],
        "untraced": report["untraced"],
    }


def _compiled_again(item: Any) -> str:
    """A request of this kind waits for the compiler, although it was warmed up."""
    return f"{item.function} is compiled again after the warm-up: {item.cause}"


def _assert_all(report: JsonObject, packed: Sequence[PackedCall]) -> None:
    unwarmed = any(call.inputs.why_not is not None for call in packed)
    if report["misses"] or (report["graphs"] != report["of"] and not unwarmed):
        why = "; ".join((*report["misses"], *report["notes"])) or "no reason is known"
        raise Unverified(
            f"in a fresh process only {report['graphs']} of {report['of']} graphs came"
            f" from the pack's caches: {why}"
        )


def _fresh_calls(job: PackJob, details: CachesDetails) -> list[Any]:
    """Calls with new values; the target's own call where none can be generated.

    A generated call that fails in eager says nothing about the pack, and is not used.
    """
    loaded = rank_jobs.fresh(job.run)
    new_calls = []
    for index, packed in enumerate(details.calls):
        calls.before(loaded, index)
        call = loaded.calls[index]
        if packed.inputs.why_not is None:
            fresh = example_inputs.make(packed.inputs, seed=index + 1)
            with (
                contextlib.suppress(Exception),
                warm_up.gradient_mode(packed.gradients),
            ):
                calls.invoke(loaded.fn, fresh, train=False)
                call = example_inputs.make(packed.inputs, seed=index + 1)
        new_calls.append(call)
    return new_calls


def _reference(
    job: PackJob, new_calls: Sequence[Any], *, gradients: bool
) -> numerics.Reference:
    def make() -> Loaded:
        loaded = rank_jobs.fresh(job.run)
        return replace(loaded, calls=[_copied(c) for c in new_calls])

    def run(loaded: Loaded) -> calls.Answers:
        with warm_up.gradient_mode(gradients):
            train, follows = job.run.train, calls.trains(loaded, job.run)
            return calls.answers(loaded, loaded.fn, train=train, backward=follows)

    return numerics.reference(make, run)


def _copied(call: Any) -> Any:
    """A copy of a call with new tensors, since a call may write to them."""

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        again = put_marks(value.detach().clone(), marks_of(value))
        return again.requires_grad_() if value.requires_grad else again

    return trees.mapped(call, copy)
