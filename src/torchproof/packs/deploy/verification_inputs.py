"""The inputs that verify a package, with eager's outputs.

The build writes them to a file, which a process without the model's code reads. The
inputs run in order, since the outputs of a model with state depend on earlier calls.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch

from torchproof.packs.deploy.tensor_function import (
    FlatTarget,
    Refusal,
    Tensors,
    copied,
    is_equal,
    preserved,
)
from torchproof.records import JsonObject, schema
from torchproof.runtime import InputSpec, Range, evaluate, order_of
from torchproof.torch_private import Structure, Unfit, comparison

_MOST_ELEMENTS = 2**22  # of a generated tensor
_SLOW_S = 1.0  # an eager run that takes longer ends the search for larger sizes


@dataclass(frozen=True)
class VerificationInput:
    """Inputs with a name, such as "x.size(0) = 1"."""

    name: str
    inputs: Tensors


class Question(TypedDict):
    """Verification inputs as a pack's build saves them, with eager's outputs."""

    name: str
    inputs: Tensors
    after: Tensors  # the inputs, after the call
    tensors: Tensors
    form: JsonObject


@dataclass(frozen=True)
class EagerResult:
    """Eager's output tensors and their structure, and the inputs after the call."""

    tensors: Tensors
    form: Structure
    inputs: Tensors

    def compare(
        self, output: Any, inputs: Tensors, kinds: Sequence[torch.dtype]
    ) -> comparison.Comparison:
        """Compare an output, and the inputs after the call, with eager's."""
        try:
            tensors = self.form.tensors_of(output, "output")
        except Unfit as error:
            return comparison.wrong(str(error), "output", how="form")
        expected = _named(self.tensors, self.inputs)
        types = comparison.types_in_use(list(expected.values()), []) | set(kinds)
        tolerance = comparison.tolerance_for(types, expected.values())
        actual = _named(tensors, inputs)
        return comparison.compare(actual, expected, tolerance=tolerance)


def _named(outputs: Tensors, inputs: Tensors) -> dict[str, torch.Tensor]:
    parts = {f"output {i}": t for i, t in enumerate(outputs)}
    return parts | {f"input {i} after the call": t for i, t in enumerate(inputs)}


def eager(target: FlatTarget, inputs: Tensors) -> EagerResult:
    """Run the target without the compiler."""
    inputs = [copied(t) for t in inputs]
    torch.manual_seed(0)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        tensors = [t.detach().clone() for t in target.flat(*inputs)]
    return EagerResult(tensors, target.flat.output, inputs)


def of_calls(
    target: FlatTarget, calls: Iterable[Any], name: str
) -> Iterator[VerificationInput]:
    """The calls of a factory that have the packed structure."""
    for index, call in enumerate(calls):
        try:
            yield VerificationInput(f"call {index}{name}", target.flattened(call))
        except Unfit:
            continue


def limited(target: FlatTarget, entrance: InputSpec) -> InputSpec:
    """The spec with upper limits that export cannot infer, such as a table's length.

    The limits are found by running eager, except on CUDA, where an index out of range
    ends the process.
    """
    if target.device != "cpu":
        return entrance
    ranges = dict(entrance.ranges)
    for letter, size in _letters(entrance, target.inputs[0]).items():
        if ranges[letter].high is None:
            high = _high_end(target, entrance, letter, size)
            ranges[letter] = Range(ranges[letter].low, high)
    return InputSpec(entrance.tensors, ranges, entrance.conditions)


def _high_end(
    target: FlatTarget, entrance: InputSpec, letter: str, size: int
) -> int | None:
    """The largest size that eager accepts; None if it accepts all that are tried."""
    base, good = _letters(entrance, target.inputs[0]), size
    for other in (4 * size, 16 * size, 64 * size):
        begun = time.monotonic()
        if _runs(target, entrance, {**base, letter: other}):
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
        if _runs(target, entrance, {**base, letter: middle}):
            good = middle
        else:
            bad = middle
    return good


def _runs(target: FlatTarget, entrance: InputSpec, letters: Mapping[str, int]) -> bool:
    """Whether eager runs; also True for sizes that the package would not accept."""
    inputs = _of_letters(target, entrance, letters, 0)
    if inputs is None:
        return True
    try:
        with preserved(target.flat):
            eager(target, inputs)
    except Exception:
        return False
    return True


def _of_letters(
    target: FlatTarget, entrance: InputSpec, letters: Mapping[str, int], seed: int
) -> Tensors | None:
    """Random inputs in these sizes; None if the package does not accept them."""
    shapes = [
        [s if isinstance(s, int) else evaluate(s, letters) for s in t.sizes]
        for t in entrance.tensors
    ]
    try:
        entrance.assert_sizes(shapes)
    except Unfit:
        return None
    if any(torch.Size(shape).numel() > _MOST_ELEMENTS for shape in shapes):
        return None
    return random_inputs(target.inputs, seed, shapes)


def random_inputs(
    calls: Sequence[Tensors], seed: int, shapes: Sequence[Sequence[int]]
) -> Tensors:
    """Inputs like those of the first call, with random values, in these shapes."""
    generator = torch.Generator().manual_seed(seed)
    inputs = []
    for i, like in enumerate(calls[0]):
        fresh = _values([call[i] for call in calls], tuple(shapes[i]), generator)
        order = order_of(like)
        back = [order.index(d) for d in range(like.dim())]
        inputs.append(fresh.to(like.device).permute(order).contiguous().permute(back))
    return inputs


def _values(
    examples: Sequence[torch.Tensor], shape: tuple[int, ...], generator: torch.Generator
) -> torch.Tensor:
    """Normal numbers with the standard deviation of the examples, or integers in their
    range; masks are 0 and 1."""
    dtype = examples[0].dtype
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.complex64).to(dtype)
    if dtype.is_floating_point:
        flat = torch.cat([t.detach().double().flatten().cpu() for t in examples])
        flat = flat[flat.isfinite()]
        scale = float(flat.std()) if flat.numel() > 1 else 0.0
        return (torch.randn(shape, generator=generator) * (scale or 1.0)).to(dtype)
    filled = [t for t in examples if t.numel()]
    if dtype is torch.bool or not filled:
        low, high = 0, 1
    else:
        low = min(int(t.min()) for t in filled)
        high = max(int(t.max()) for t in filled)
    if low == high == 1:  # a mask of ones
        low = 0
    return torch.randint(low, high + 1, shape, generator=generator).to(dtype)


def _other_sizes(size: int, low: int, high: int | None) -> list[int]:
    """Sizes to try instead: the ends of the range, neighbours, odd and larger sizes."""
    tried = {low, low + 1, size - 1, size + 1, 2 * size + 1, 4 * size}
    if high is not None:
        tried |= {high, high - 1}
    fits = {s for s in tried if low <= s and (high is None or s <= high)}
    return sorted(fits - {size})


def of_sizes(target: FlatTarget, entrance: InputSpec) -> Iterator[VerificationInput]:
    """Random values in accepted sizes, including the ends of their ranges.

    On CUDA no size exceeds those of the calls: an index out of range ends the process.
    """
    base = _letters(entrance, target.inputs[0])
    most = dict(base)
    for inputs in target.inputs:
        for letter, size in _letters(entrance, inputs).items():
            most[letter] = max(most[letter], size)
    tries = [(base, "other values")]
    for letter, size in base.items():
        limits = entrance.ranges[letter]
        sizes = _other_sizes(size, limits.low, limits.high)
        where = _where(entrance, letter)
        if target.device == "cuda":
            sizes = [s for s in sizes if s <= most[letter]]
        tries += [({**base, letter: s}, f"{where} = {s}") for s in sizes if s != size]
    lows = {letter: max(1, entrance.ranges[letter].low) for letter in base}
    if len(base) > 1:
        tries.append((lows, "all sizes at their minimum"))
    for number, (letters, name) in enumerate(tries, 1):
        generated = _of_letters(target, entrance, letters, number)
        if generated is not None:
            yield VerificationInput(name, generated)


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


def assert_repeats(target: FlatTarget) -> None:
    """Raise `Refusal` unless equal inputs give equal outputs with any random seed."""
    answers = []
    for number in (1, 1, 2):
        with preserved(target.flat), torch.no_grad():
            torch.manual_seed(number)
            inputs = [copied(t) for t in target.inputs[0]]
            answers.append([t.clone() for t in target.flat(*inputs)])
    if not _alike(answers[0], answers[1]):
        raise Refusal(
            "the same call gives another output the second time: the target has state"
            " outside its buffers, which a package cannot contain"
        )
    if _alike(answers[0], answers[2]):
        return
    if target.flat.training:
        raise Refusal(
            "the model is in training mode and draws random numbers: call .eval() on it"
            " in the factory"
        )
    raise Refusal("the target draws random numbers, so its outputs cannot be verified")


def _alike(some: Tensors, others: Tensors) -> bool:
    return len(some) == len(others) and all(map(is_equal, some, others))


def write(
    target: FlatTarget, questions: Iterable[VerificationInput], file: Path
) -> list[str]:
    """Write the inputs with eager's outputs; omit inputs on which eager fails."""
    entries: list[Question] = []
    with preserved(target.flat):
        for question in questions:
            try:
                answer = eager(target, question.inputs)
            except Exception:  # generated inputs may be invalid for the model
                continue
            entries.append(
                {
                    "name": question.name,
                    "inputs": [copied(t) for t in question.inputs],
                    "after": answer.inputs,
                    "tensors": answer.tensors,
                    "form": schema.to_plain(answer.form),
                }
            )
    kinds = sorted({str(kind) for kind in target.kinds})
    torch.save({"questions": entries, "kinds": kinds}, file)
    return [each["name"] for each in entries]
