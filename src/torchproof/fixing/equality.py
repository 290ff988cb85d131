"""Compares what an edited target shows with what the original shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torchproof.fixing.behaviour import Behaviour, Outcome
from torchproof.fixing.proof_job import Equality
from torchproof.records import Namespace, one_line
from torchproof.targets import Answers
from torchproof.torch_private import comparison

_EQUAL = {"same", "rounding"}


@dataclass(frozen=True)
class Reference:
    """What the original shows."""

    eager: Behaviour
    exact: Answers | None  # in float64
    perturbed: list[Answers]
    state: Namespace | None
    draws: bool = False  # random numbers from torch
    stateful: bool = False  # a call may depend on the calls before it
    compiled_text: tuple[str, ...] | None = None  # of its first run, compiled
    random_compiled: bool = False  # compiled, it draws other numbers than in eager
    unrepeatable: str | None = None  # what differs each time it is loaded


def failed(why: str, backend: str) -> Equality:
    """Of an edited target that raises when it is compiled."""
    problem = f"the edited target fails when it is compiled: {why}"
    return Equality(backend, "unknown", None, 0, 0, 0, problems=(problem,))


def equality(
    reference: Reference, eager: Behaviour, compiled: Behaviour, backend: str
) -> Equality:
    """Compares both runs of the edited target with the original."""
    problems = [*differences("in eager", reference, eager)]
    unsafe = [*_unsafe(reference, eager, compiled)]
    problems += _unseen("in eager", reference.eager, eager, strict=True)
    shown = reference  # of the calls whose compiled values can be compared
    last = compared(compiled.answers, reference)
    # Other backends draw random numbers in another order; the proofs of the search
    # compared the values with the same numbers. Where Dynamo replaces numpy's numbers
    # with torch's, that is so with every backend.
    another_stream = backend != "eager" or reference.random_compiled
    if reference.draws and another_stream and last.verdict == "wrong":
        last = comparison.Comparison(None)
    else:
        other = _calls_with_other_numbers(reference, compiled, last)
        if other:
            unsafe.append("compiled, it draws other random numbers")
            last = comparison.Comparison(None)
            compiled = _without(compiled, other)
        shown = replace(reference, eager=_without(reference.eager, other))
        problems += differences("compiled", shown, compiled)
        problems += _unseen("compiled", shown.eager, compiled, strict=False)
    undecided = None
    if problems and reference.unrepeatable:
        undecided, problems = reference.unrepeatable, []
    # The edited target may have had less time, and then ran fewer of them.
    known = reference.eager.unseen.items()
    unseen = [outcome for name, outcome in known if name in eager.unseen]
    values = shown.eager.answers.values()
    return Equality(
        backend=backend,
        verdict=last.verdict or ("random" if reference.draws else "unknown"),
        max_rel_error=last.max_rel_error,
        compared=sum(not isinstance(value, comparison.Form) for value in values),
        unseen=len(unseen),
        exceptions=sum(outcome.refused for outcome in unseen),
        problems=tuple(problems),
        unsafe=tuple(unsafe),
        undecided=undecided,
    )


def screened(
    reference: Reference, eager: Behaviour, compiled: Behaviour, backend: str
) -> Equality:
    """As `equality`, where only the first call was compiled: it can only refute."""
    later = set(range(1, len(reference.eager.random)))
    first = replace(_without(reference.eager, later), attributes={})
    shown = replace(_without(compiled, {-1}), attributes={})
    other = compiled.random[0] != reference.eager.random[0] and reference.draws
    problems = [
        *differences("in eager", reference, eager),
        *_unseen("in eager", reference.eager, eager, strict=True),
    ]
    unsafe = [*_unsafe(replace(reference, compiled_text=None), eager, eager)]
    if not other:
        problems += differences("compiled", replace(reference, eager=first), shown)
    elif not reference.random_compiled:
        unsafe.append("compiled, it draws other random numbers")
    return replace(
        failed("", backend),
        problems=() if reference.unrepeatable else tuple(problems),
        unsafe=tuple(unsafe),
    )


def _calls_with_other_numbers(
    reference: Reference, compiled: Behaviour, found: comparison.Comparison
) -> set[int]:
    """The calls whose values differ because compiled code drew other random numbers.

    Empty if no call is left that shows what compiled code computes.
    """
    streams = zip(reference.eager.random, compiled.random, strict=True)
    other = {index for index, (one, another) in enumerate(streams) if one != another}
    differs = reference.draws and found.verdict == "wrong"
    return other if differs and len(other) < len(compiled.random) else set()


def _without(shown: Behaviour, calls: set[int]) -> Behaviour:
    """What the other calls showed; variations draw the numbers of the first call."""
    if not calls:
        return shown
    left_out = tuple(f"{word}call {n}: " for n in calls for word in ("", "form of "))
    answers = {
        name: value
        for name, value in shown.answers.items()
        if not name.startswith((*left_out, "buffer "))
    }
    unseen = {} if 0 in calls else shown.unseen
    return replace(shown, answers=answers, unseen=unseen)


def compared(answers: Any, reference: Reference) -> comparison.Comparison:
    return comparison.compare(
        answers,
        reference.eager.answers,
        reference.exact,
        perturbed=lambda: reference.perturbed,
    )


def differences(how: str, reference: Reference, shown: Behaviour) -> Iterator[str]:
    """Differences of outputs, gradients, inputs, buffers, memory and attributes."""
    found = compared(shown.answers, reference)
    if found.verdict not in _EQUAL:
        where = f" at {found.where}" if found.where else ""
        yield f"{how}, the results differ{where}: {found.why or found.verdict}"
    for difference in comparison.form_differences(
        shown.answers, reference.eager.answers
    ):
        # Generated code may use other strides; that is not what the edit does.
        if how == "in eager" or difference.what != "strides":
            yield f"{how}, {difference.where}: {difference.why}"
    kept = comparison.compare(shown.attributes, reference.eager.attributes)
    if kept.verdict == "wrong":
        yield f"{how}, attribute {kept.where} differs: {kept.why}"


def _unseen(
    how: str, original: Behaviour, shown: Behaviour, *, strict: bool
) -> Iterator[str]:
    """Differences on inputs that the target has not been called with.

    Compiled code may raise another error than eager where an operator fails, but not
    where the program itself refuses an input.
    """
    for name in original.unseen.keys() & shown.unseen.keys():
        one, other = original.unseen[name], shown.unseen[name]
        if problem := _different(one, other, strict=strict or one.refused):
            yield f"{how}, with {name}: {problem}"


def _different(one: Outcome, other: Outcome, *, strict: bool) -> str | None:
    if one.error is not None or other.error is not None:
        if one.error == other.error or (one.error and other.error and not strict):
            return None
        raised = [f"raises {o.error}" if o.error else "runs" for o in (one, other)]
        return f"the original {raised[0]}, the edited target {raised[1]}"
    assert one.answers is not None and other.answers is not None
    found = comparison.compare(other.answers, one.answers, one.exact)
    if found.verdict == "wrong":
        return f"the results differ at {found.where}: {found.why}"
    return None


def _unsafe(
    reference: Reference, eager: Behaviour, compiled: Behaviour
) -> Iterator[str]:
    if eager.random != reference.eager.random:
        yield "it draws other random numbers"
    if eager.text != reference.eager.text:
        yield "it prints or logs other text"
    elif reference.compiled_text is not None:
        before = lines_without_values(reference.compiled_text)
        lost = before - lines_without_values(compiled.text)
        if lost:
            line = one_line(next(iter(lost)), 80)
            yield f"it does not print or log {line!r} when it is compiled"


def lines_without_values(text: tuple[str, ...]) -> Counter[str]:
    """The lines without what runs may differ in: values, and the names of gradients."""
    plain = (re.sub(r"grad_fn=<\w+>", "grad_fn", line) for line in text)
    return Counter(re.sub(r"[-+]?\d[\d.e+-]*", "#", line) for line in plain)
