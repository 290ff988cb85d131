"""The inputs that verify a package, with eager's outputs.

The build writes them to a file, which a process without the model's code reads. The
inputs run in order, since the outputs of a model with state depend on earlier calls.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchproof.packs.deploy.input_generators import (
    RANDOM,
    Tensors,
    fits_memory,
    generate_inputs,
    other_sizes,
)
from torchproof.packs.deploy.tensor_function import (
    FlatTarget,
    Refusal,
    copied,
    preserved,
)
from torchproof.runtime import InputSpec, PytreeSpec, Range, Unfit, evaluate

_SLOW_S = 1.0  # an eager run that takes longer ends the search for larger sizes


@dataclass(frozen=True)
class VerificationInput:
    """Inputs with a name, such as "x.size(0) = 1"."""

    name: str
    inputs: Tensors


@dataclass(frozen=True)
class EagerResult:
    """Eager's output tensors and their structure, and the inputs after the call."""

    tensors: Tensors
    form: PytreeSpec
    inputs: Tensors


def eager(
    flat_target: FlatTarget, verification_input: VerificationInput
) -> EagerResult:
    inputs = [copied(t) for t in verification_input.inputs]
    torch.manual_seed(0)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        tensors = [t.detach().clone() for t in flat_target.flat(*inputs)]
    return EagerResult(tensors, flat_target.flat.output, inputs)


def of_calls(
    flat_target: FlatTarget, calls: Iterable[Any], name: str
) -> Iterator[VerificationInput]:
    """The calls of a factory that have the packed structure."""
    for index, call in enumerate(calls):
        try:
            yield VerificationInput(f"call {index}{name}", flat_target.flattened(call))
        except Unfit:
            continue


def limited(flat_target: FlatTarget, entrance: InputSpec) -> InputSpec:
    """The spec with upper limits that export cannot infer, such as a table's length.

    The limits are found by running eager, except on CUDA, where an index out of range
    ends the process.
    """
    if flat_target.device != "cpu":
        return entrance
    ranges = dict(entrance.ranges)
    for letter, size in _letters(entrance, flat_target.inputs[0]).items():
        if ranges[letter].high is None and ranges[letter].only is None:
            high = _high_end(flat_target, entrance, letter, size)
            ranges[letter] = Range(ranges[letter].low, high)
    return InputSpec(entrance.tensors, ranges, entrance.conditions)


def _high_end(
    flat_target: FlatTarget, entrance: InputSpec, letter: str, size: int
) -> int | None:
    """The largest size that eager accepts; None if it accepts all that are tried."""
    base, good = _letters(entrance, flat_target.inputs[0]), size
    for other in (4 * size, 16 * size, 64 * size):
        begun = time.monotonic()
        if _runs(flat_target, entrance, {**base, letter: other}):
            good = other
        else:
            bad = other
            break
        if time.monotonic() - begun > _SLOW_S:
            return None
    else:
        return None
    while bad - good > 1:
        middle = (good + bad) // 2
        if _runs(flat_target, entrance, {**base, letter: middle}):
            good = middle
        else:
            bad = middle
    return good


def _runs(
    flat_target: FlatTarget, entrance: InputSpec, letters: Mapping[str, int]
) -> bool:
    """Whether eager runs; also True for sizes that the package would not accept."""
    shapes = _shapes(entrance, letters)
    try:
        entrance.assert_sizes(shapes)
    except Unfit:
        return True
    if not fits_memory(shapes):
        return True
    try:
        with preserved(flat_target.flat):
            eager(
                flat_target,
                VerificationInput(
                    "", generate_inputs(flat_target.inputs, RANDOM, 0, shapes)
                ),
            )
    except Exception:
        return False
    return True


def _shapes(entrance: InputSpec, letters: Mapping[str, int]) -> list[list[int]]:
    return [
        [s if isinstance(s, int) else evaluate(s, letters) for s in t.sizes]
        for t in entrance.tensors
    ]


def of_sizes(
    flat_target: FlatTarget, entrance: InputSpec
) -> Iterator[VerificationInput]:
    """Random values in accepted sizes, including the ends of their ranges.

    On CUDA no size exceeds those of the calls: an index out of range ends the process.
    """
    base = _letters(entrance, flat_target.inputs[0])
    most = dict(base)
    for inputs in flat_target.inputs:
        for letter, size in _letters(entrance, inputs).items():
            most[letter] = max(most[letter], size)
    tries = [(base, "other values")]
    for letter, size in base.items():
        limits = entrance.ranges[letter]
        sizes = limits.only or other_sizes(size, limits.low, limits.high)
        where = _where(entrance, letter)
        if flat_target.device == "cuda":
            sizes = [s for s in sizes if s <= most[letter]]
        tries += [({**base, letter: s}, f"{where} = {s}") for s in sizes if s != size]
    lows = {letter: max(1, entrance.ranges[letter].low) for letter in base}
    if len(base) > 1:
        tries.append((lows, "all sizes at their minimum"))
    for number, (letters, name) in enumerate(tries, 1):
        shapes = _shapes(entrance, letters)
        try:
            entrance.assert_sizes(shapes)
        except Unfit:
            continue
        if fits_memory(shapes):
            yield VerificationInput(
                name, generate_inputs(flat_target.inputs, RANDOM, number, shapes)
            )


def _letters(entrance: InputSpec, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
    pairs = zip(entrance.tensors, inputs, strict=True)
    return {
        letter: size
        for spec, tensor in pairs
        for letter, size in zip(spec.sizes, tensor.shape, strict=True)
        if isinstance(letter, str) and letter.isidentifier()
    }


def _where(entrance: InputSpec, letter: str) -> str:
    return next(
        f"{t.label}.size({t.sizes.index(letter)})"
        for t in entrance.tensors
        if letter in t.sizes
    )


def assert_repeats(flat_target: FlatTarget) -> None:
    """Raise `Refusal` unless equal inputs give equal outputs with any random seed."""
    answers = []
    for number in (1, 1, 2):
        with preserved(flat_target.flat), torch.no_grad():
            torch.manual_seed(number)
            inputs = [copied(t) for t in flat_target.inputs[0]]
            answers.append([t.clone() for t in flat_target.flat(*inputs)])
    if not _alike(answers[0], answers[1]):
        raise Refusal(
            "the same call gives another output the second time: the target has state"
            " outside its buffers, which a package cannot contain"
        )
    if _alike(answers[0], answers[2]):
        return
    if flat_target.flat.training:
        raise Refusal(
            "the model is in training mode and draws random numbers: call .eval() on it"
            " in the factory"
        )
    raise Refusal("the target draws random numbers, so its outputs cannot be verified")


def _alike(some: Tensors, others: Tensors) -> bool:
    if len(some) != len(others):
        return False
    pairs = list(zip(some, others, strict=True))
    return all(torch.equal(a, b) or bool((a != a).any()) for a, b in pairs)


def write(
    flat_target: FlatTarget, questions: Iterable[VerificationInput], file: Path
) -> list[str]:
    """Write the inputs with eager's outputs; omit inputs on which eager fails."""
    entries: list[dict[str, Any]] = []
    with preserved(flat_target.flat):
        for verification_input in questions:
            try:
                answer = eager(flat_target, verification_input)
            except Exception:  # generated inputs may be invalid for the model
                continue
            inputs = [copied(t) for t in verification_input.inputs]
            entry = {
                "name": verification_input.name,
                "inputs": inputs,
                "after": answer.inputs,
            }
            entries.append(entry | {"tensors": answer.tensors, "form": answer.form})
    weights = [
        t.dtype for t in (*flat_target.flat.parameters(), *flat_target.flat.buffers())
    ]
    kinds = sorted({str(kind) for kind in weights if kind.is_floating_point})
    torch.save({"questions": entries, "kinds": kinds}, file)
    return [each["name"] for each in entries]
