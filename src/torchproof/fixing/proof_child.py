"""The child process of a proof: observes an edited target and compares it.

The first proof of a target has no edits. It records the reference: what the original
shows in eager and in float64. A later one has an overlay and compares what the edited
target shows with the reference. During the search Dynamo's graphs run in eager, which
gives the same values and the same random numbers; the last proof generates code.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from torchproof.fixing import call_probe
from torchproof.fixing.behaviour import (
    Behaviour,
    Outcome,
    attributes_of,
    behaviour,
    digest_outside_torch,
    draws_outside_torch,
    outcome,
    unseen_answers,
    with_unseen,
)
from torchproof.fixing.equality import Reference, equality, failed, screened
from torchproof.fixing.printed import collected_text
from torchproof.fixing.proof_job import Equality, ProofJob
from torchproof.fixing.variations import variations
from torchproof.measure import numerics
from torchproof.observe import Observer, observe_job, observing
from torchproof.process import Stream, hold
from torchproof.records import Namespace, UserError, one_line, whose
from torchproof.runtime import apply_patches
from torchproof.targets import Job, Loaded, calls
from torchproof.torch_private import comparison

_EXACT_SECONDS = 10.0  # no new run in float64 begins after this time
_REFUSED, _OTHERS = 6, 3  # variations that compiled code runs
State = Namespace | None
_CODE_ARGUMENTS = {"backend", "mode", "options"}


def main(arguments: list[str]) -> int:
    return prove(ProofJob.from_json(json.loads(arguments[0])), Stream())


def prove(job: ProofJob, stream: Stream) -> int:
    """Runs one proof; returns an exit code. A failure is written with its reason."""
    try:
        code = _prove(job, stream)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        stream.write("memory", bytes=peak * 1024)
        return code
    except Exception as error:
        _write_raised(stream, error)
        is_known = isinstance(error, UserError)
        stream.write("unusable", message=str(error) if is_known else _reason(error))
        if not is_known:
            traceback.print_exc()
    return 2


def _write_raised(stream: Stream, error: BaseException) -> None:
    """The lines of code that an exception came through; Dynamo's are in its text."""
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    texts = [*(frame.line or "" for frame in frames), *str(error).splitlines()]
    lines = [line for each in texts if (line := each.strip())]
    stream.write("raised_through", lines=lines)


def _reason(error: Exception) -> str:
    """The exception, and where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(last.filename)}:{last.lineno} in {last.name}"
    return one_line(f"{type(error).__name__}: {error} ({place})", 300)


def _prove(job: ProofJob, stream: Stream) -> int:
    if job.probes:
        return _probe(job, stream)
    if job.run.overlay is None and job.patches is None:
        return _original(job, stream)
    patches = None if job.patches is None else apply_patches(job.patches)
    with observing(job.run, stream) as (run, observer):
        reference: Reference = torch.load(job.reference, weights_only=False)
        found = _equality(run, job, reference, observer)
        stream.write("equality", **found.to_json())
    if patches is not None and patches.left_alone:
        name, why = next(iter(patches.left_alone.items()))
        stream.write("unusable", message=f"{name} is not patched: {why}")
        return 2
    return 0


def _original(job: ProofJob, stream: Stream) -> int:
    with collected_text() as text:
        code = observe_job(job.run, stream)
    if code:
        return code
    torch.compiler.reset()
    run = calls.resolved(job.run)
    drawn = digest_outside_torch()
    with collected_text() as loading:
        compiles_itself = calls.compiles_itself(calls.fresh(run).fn, run)
    of_calls = Counter(text) - Counter(loading)
    reference = _reference(run)
    # Dynamo replaces numbers of numpy by those of torch, some or all.
    outside = draws_outside_torch(reference.eager.random)
    is_random = outside and _drawn_in_eager(run) != drawn
    reference = replace(
        reference,
        compiled_text=tuple(of_calls.elements()),
        random_compiled=is_random,
    )
    torch.save(reference, job.reference)
    # Backends draw random numbers in another order; Inductor's code takes long.
    any_backend = not reference.draws and not compiles_itself
    stream.write("libraries", modules=_libraries(), any_backend=any_backend)
    return 0


def _drawn_in_eager(run: Job) -> str:
    """The digest of numpy's and Python's generators after the calls in a row."""
    with torch.compiler.set_stance("force_eager"), collected_text():
        loaded = calls.fresh(run)
        train = calls.trains(loaded, run)
        for _, call in calls.each(loaded, train=train):
            calls.invoke(loaded.fn, call, train=train)
    return digest_outside_torch()


def _probe(job: ProofJob, stream: Stream) -> int:
    """Runs the calls, and variations of them, in eager mode."""
    run = calls.resolved(job.run)
    loaded = calls.fresh(run)
    train = calls.trains(loaded, run)
    with torch.compiler.set_stance("force_eager"):
        behaviour(loaded, loaded.fn, train=train)
        for call in (loaded.calls[0], loaded.calls[-1]):
            for _, changed in variations(call):
                known = len(call_probe.observed)
                if outcome(loaded, loaded.fn, changed, train=train).error:
                    del call_probe.observed[known:]
    for each in call_probe.observed:
        stream.write("observed_call", **each.to_json())
    return 0


def _libraries() -> dict[str, str]:
    """The imported modules of torch and other packages and their files, in order."""
    return {
        name: file
        for name, module in list(sys.modules.items())
        if isinstance(file := getattr(module, "__file__", None), str)
        and whose(file) in {"library", "torch"}
    }


def _reference(run: Job) -> Reference:
    loaded = calls.fresh(run)
    state = loaded.fn.state_dict() if isinstance(loaded.fn, torch.nn.Module) else None
    state = state and {name: value.detach().clone() for name, value in state.items()}
    train = calls.trains(loaded, run)
    before = attributes_of(loaded.fn)
    with torch.compiler.set_stance("force_eager"):
        eager = behaviour(loaded, loaded.fn, train=train)
        stateful = state is None or _changed(loaded.fn, state)
        stateful |= comparison.compare(eager.attributes, before).verdict == "wrong"
        again = _target(run, loaded, state, stateful=stateful)
        eager = with_unseen(eager, again, train=train)
    known = numerics.reference(
        lambda: _loaded(run, state),
        lambda built: calls.answers(built, built.fn, train=train),
        earlier=eager.answers,
    )
    perturbed = [] if known.exact is not None else list(known.perturbed())
    if not known.unrepeatable:
        unseen = _with_exact(eager.unseen, run, state, train=train)
        eager = replace(eager, unseen=unseen)
    return Reference(
        eager,
        known.exact,
        perturbed,
        state,
        draws=known.draws,
        stateful=stateful,
        unrepeatable=known.unrepeatable,
    )


def _with_exact(
    unseen: Mapping[str, Outcome], run: Job, state: State, *, train: bool
) -> dict[str, Outcome]:
    """Adds the answers in float64, which tell rounding near zero from a difference.

    Leaves out variations that the original answers differently each time, such as
    integers for which an operator reads beyond its input: they can prove nothing.
    """
    known = dict(unseen)
    until = time.monotonic() + _EXACT_SECONDS
    for name, shown in unseen.items():
        if shown.answers is None or time.monotonic() > until:
            continue
        # Without float64 the comparison is stricter, so an error only costs a fix.
        with contextlib.suppress(Exception), collected_text():
            found = numerics.reference(
                lambda: _loaded(run, state),
                partial(unseen_answers, name, train=train),
                earlier=shown.answers,
            )
            known[name] = replace(shown, exact=found.exact)
            if found.unrepeatable:
                del known[name]
    return known


def _changed(fn: Any, state: Namespace) -> bool:
    """Whether calls have changed a parameter or a buffer."""
    now = fn.state_dict()
    return any(not torch.equal(value, now[name]) for name, value in state.items())


def _equality(
    run: Job, job: ProofJob, reference: Reference, observer: Observer
) -> Equality:
    # Compiled code takes longer, so it runs on what the program refuses and a few more.
    unseen = reference.eager.unseen
    refused = [name for name, outcome in unseen.items() if outcome.refused]
    names = {*list(unseen)[:_OTHERS], *refused[:_REFUSED]}
    backend = job.backend or "eager"
    try:
        if job.screens:
            compiled = _compiled(run, backend, reference, observer, first=True)
        else:
            compiled = _compiled(run, backend, reference, observer, unseen=names)
    except UserError:
        raise
    except Exception as error:
        _write_raised(observer.stream, error)
        return failed(one_line(f"{type(error).__name__}: {error}", 200), backend)
    observer.paused = True
    loaded = _loaded(run, reference.state)
    train = calls.trains(loaded, run)
    with torch.compiler.set_stance("force_eager"):
        eager = behaviour(loaded, loaded.fn, train=train)
        again = _target(run, loaded, reference.state, stateful=reference.stateful)
        eager = with_unseen(eager, again, train=train)
    compare = screened if job.screens else equality
    return compare(reference, eager, compiled, backend)


def _loaded(run: Job, state: State) -> Loaded:
    """A fresh target with the state of the original."""
    loaded = calls.fresh(run)
    if state is not None and isinstance(loaded.fn, torch.nn.Module):
        # Not strict: an edit may add a buffer.
        loaded.fn.load_state_dict(state, strict=False)
    return loaded


def _target(
    run: Job,
    loaded: Loaded,
    state: State,
    *,
    stateful: bool,
    made: Callable[[Loaded], Callable[..., Any]] = attrgetter("fn"),
) -> Callable[[], tuple[Loaded, Callable[..., Any]]]:
    """Gives the target for one more call; a new one if earlier calls changed it."""
    fn = made(loaded)

    def target() -> tuple[Loaded, Callable[..., Any]]:
        if not stateful:
            return loaded, fn
        torch.compiler.reset()  # the limit of recompiles counts those of all targets
        again = _loaded(run, state)
        return again, made(again)

    return target


def _compiled(
    run: Job,
    backend: str,
    reference: Reference,
    observer: Observer,
    *,
    unseen: Collection[str] = (),
    first: bool = False,
) -> Behaviour:
    """What the compiled target shows, under observation; perhaps its first call."""

    def made(loaded: Loaded) -> Callable[..., Any]:
        observer.site = (loaded.place,)
        fn = _compiled_fn(run, loaded, backend)
        observer.site = None
        return fn

    loaded = _loaded(run, reference.state)
    if first:
        loaded = replace(loaded, calls=loaded.calls[:1])
    state, stateful = reference.state, reference.stateful
    train, fn = calls.trains(loaded, run), made(loaded)
    shown = behaviour(loaded, fn, train=train, around=observer.observed_call)
    observer.paused = True  # what other inputs compile is not part of the run
    target = _target(run, loaded, state, stateful=stateful, made=made)
    return with_unseen(shown, target, train=train, names=unseen)


def _compiled_fn(run: Job, loaded: Loaded, backend: str) -> Callable[..., Any]:
    if calls.compiles_itself(loaded.fn, run):
        return loaded.fn
    compile_arguments = {
        k: v for k, v in run.compile.items() if k not in _CODE_ARGUMENTS
    }
    if backend == "inductor":  # draws the random numbers that eager draws
        compile_arguments["options"] = {"fallback_random": True}
    return torch.compile(loaded.fn, backend=backend, **compile_arguments)


if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
