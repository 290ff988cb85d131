"""`--artifact torchscript`: traces the model, if the trace is valid for every input.

A trace records one path through the code. This module runs the model on inputs with
many values and sizes. It refuses to build a package if an input takes another path and
the trace's outputs differ, or if no input takes the other side of a branch.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torchproof.packs.deploy import path_coverage, verification_inputs
from torchproof.packs.deploy.input_generators import (
    RANDOM,
    VALUE_GENERATORS,
    fits_memory,
    generate_inputs,
    other_sizes,
)
from torchproof.packs.deploy.path_coverage import At, ExecutionPath
from torchproof.packs.deploy.tensor_function import (
    FlatTarget,
    Package,
    Refusal,
    copied,
    line_of,
    preserved,
)
from torchproof.packs.deploy.verification_inputs import VerificationInput
from torchproof.records import one_line
from torchproof.runtime import InputSpec, PytreeSpec, Range, pytree_json

_SEEDS = 3  # seeds for random values; each other generator runs once
_DEPRECATED = "torch.jit.trace is deprecated; use it only for old runtimes"


@dataclass(frozen=True)
class Trial:
    """One input: eager's path, and how the trace's output differs, if it does."""

    name: str
    path: ExecutionPath
    difference: str | None


@dataclass(frozen=True)
class Trace:
    """The traced model, the path it was traced on, and its output's structure."""

    target: FlatTarget
    model: Any
    path: ExecutionPath
    output: PytreeSpec


def build(
    target: FlatTarget, fresh: Sequence[VerificationInput], file: Path
) -> Package:
    """Write the package to `file`. Raises `Refusal` if none is possible."""
    trace = traced(target)
    notes = _assert_holds(trace, [*_values(target), *_same_sizes(target, fresh)])
    entrance = sizes_of(trace)
    _save(trace.model, file)
    return Package(entrance, trace.output, _device(trace), (*notes, _DEPRECATED))


def traced(target: FlatTarget) -> Trace:
    """Trace the first call."""
    inputs = tuple(copied(t) for t in target.inputs[0])
    with (
        warnings.catch_warnings(),
        preserved(target.flat),
        torch.no_grad(),
        path_coverage.record_path() as path,
    ):
        warnings.simplefilter("ignore")
        try:
            jit: Any = torch.jit  # its stubs lack types
            model = jit.trace(target.flat, inputs, check_trace=False)
        except Exception as error:
            raise Refusal(f"the model cannot be traced: {line_of(error)}") from error
    output = target.flat.output
    expected = verification_inputs.eager(target, target.inputs[0]).form
    return Trace(target, model, path, _with_numbers(output, expected))


def _with_numbers(trace: PytreeSpec, eager: PytreeSpec) -> PytreeSpec:
    """The trace's output structure; a tensor there is a number where eager has one."""
    if trace.kind == "tensor" and eager.kind == "value":
        return replace(trace, kind="number")
    shapes = {(each.kind, each.keys, len(each.parts)) for each in (trace, eager)}
    if len(shapes) > 1:
        return trace
    pairs = zip(trace.parts, eager.parts, strict=True)
    return replace(trace, parts=tuple(_with_numbers(a, b) for a, b in pairs))


# -- values ----------------------------------------------------------------------------


def _values(target: FlatTarget) -> Iterator[tuple[VerificationInput, bool]]:
    """Generated inputs of the traced sizes, and whether their values are special."""
    generators = [RANDOM] * _SEEDS + [*VALUE_GENERATORS[1:]]
    for seed, values in enumerate(generators):
        inputs = generate_inputs(target.inputs, values, seed)
        yield VerificationInput(values.name, inputs), values.special


def _same_sizes(
    target: FlatTarget, fresh: Sequence[VerificationInput]
) -> Iterator[tuple[VerificationInput, bool]]:
    shapes = [t.shape for t in target.inputs[0]]
    calls = [
        VerificationInput(f"call {i}", each) for i, each in enumerate(target.inputs)
    ]
    for question in (*calls, *fresh):
        if [t.shape for t in question.inputs] == shapes:
            yield question, False


def _assert_holds(
    trace: Trace, inputs: Sequence[tuple[VerificationInput, bool]]
) -> list[str]:
    """Raise `Refusal` if the trace is invalid; return notes on values that it keeps."""
    trials: list[Trial] = []
    for question, special in inputs:
        trial = try_input(trace, question)
        if trial is None:  # eager fails on this input
            continue
        other = _other_way(trace, trials, trial)
        if trial.difference is None:
            trials.append(trial)
        elif other is not None or not special:
            raise Refusal(_captured_one(trial, other))
    return list(_notes(trace, trials))


def try_input(trace: Trace, question: VerificationInput) -> Trial | None:
    """Run eager and the trace; None if eager fails on this input."""
    target = trace.target
    try:
        with preserved(target.flat), path_coverage.record_path() as path:
            expected = verification_inputs.eager(target, question.inputs)
    except Exception:  # generated inputs may be invalid for the model
        return None
    inputs = [copied(t) for t in question.inputs]
    try:
        with preserved(target.flat), torch.no_grad():
            torch.manual_seed(0)
            answer = [t.detach() for t in trace.model(*inputs)]
    except Exception as error:
        reason = one_line(str(error).strip().splitlines()[-1], 200)
        return Trial(question.name, path, f"the trace fails: {reason}")
    output = pytree_json.rebuild(trace.output, answer)
    comparison = expected.compare(output, inputs, target.kinds)
    wrong = comparison.verdict == "wrong"
    difference = f"{comparison.where}: {comparison.why}" if wrong else None
    return Trial(question.name, path, difference)


def _other_way(trace: Trace, trials: Sequence[Trial], trial: Trial) -> At | None:
    """The first line where the input's path differs from the trace."""
    for at, values in trial.path.values.items():
        if values != trace.path.values.get(at, values):
            return at
    usual = trials[0].path.lines if trials else set()
    extra = sorted(trial.path.lines - usual) if usual else []
    return extra[0] if extra else None


def _captured_one(trial: Trial, at: At | None) -> str:
    where = f"{path_coverage.describe(at)}: " if at is not None else ""
    return (
        f"{where}the trace contains only one path; on {trial.name} its output differs"
        f" from eager's ({trial.difference}): use torch.where, or --artifact aoti or"
        " caches"
    )


def _notes(trace: Trace, trials: Sequence[Trial]) -> Iterator[str]:
    """Notes on values that the trace keeps although inputs had others."""
    lines = {at for trial in trials for at in trial.path.values} & set(
        trace.path.values
    )
    for at in sorted(lines):
        line = path_coverage.describe(at)
        if path_coverage.only_checks(at):
            yield f"{line}: this check is not in the traced model"
            continue
        values = [v for trial in trials for v in trial.path.values.get(at, ())]
        values += trace.path.values[at]
        if all(_same(values[0], value) for value in values):
            raise Refusal(
                f"{line}: the trace keeps the value {values[0]!r}, as all"
                f" {len(trials)} inputs gave it; the other path is not in the trace:"
                " use torch.where, or --artifact aoti or caches"
            )
        yield f"{line}: inputs with other values gave correct outputs"


def _same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))


# -- sizes -----------------------------------------------------------------------------


def sizes_of(trace: Trace) -> InputSpec:
    """The sizes that the traced model accepts: those that gave correct outputs.

    Dimensions of equal size change together. If the trace keeps a decision on a size,
    the largest size that was tried is the limit.
    """
    target = trace.target
    shapes = [tuple(t.shape) for t in target.inputs[0]]
    sizes: list[list[int | str]] = [list(shape) for shape in shapes]
    ranges: dict[str, Range] = {}
    decisions = _size_decisions(trace)
    decided = any(
        isinstance(v, bool) for at in decisions for v in trace.path.values[at]
    )
    for number, size in enumerate(sorted({s for shape in shapes for s in shape})):
        right, refused = _right_sizes(trace, shapes, size)
        if len(right) > 1:
            name = f"n{number}"
            high = max(right) if decided else None
            # If eager fails at some sizes, accept only those that were tried.
            only = tuple(sorted(right)) if refused else None
            ranges[name] = Range(min(right), high, only)
            sizes = [[name if s == size else s for s in row] for row in sizes]
    entrance = InputSpec(target.taken(sizes), ranges)
    _assert_calls(trace, entrance)
    return entrance


def _size_decisions(trace: Trace) -> list[At]:
    """The lines where the trace reads a size as a tensor's value; eager does not."""
    target = trace.target
    with preserved(target.flat), path_coverage.record_path() as usual:
        verification_inputs.eager(target, target.inputs[0])
    return [at for at in trace.path.values if at not in usual.values]


def _right_sizes(
    trace: Trace, shapes: Sequence[Sequence[int]], size: int
) -> tuple[list[int], list[int]]:
    """The sizes that give correct outputs, and those at which eager fails.

    If the trace is wrong at any size that eager accepts, no other size is accepted.
    """
    right, refused = [size], []
    for number, other in enumerate(other_sizes(size)):
        new_shapes = [[other if s == size else s for s in shape] for shape in shapes]
        if not fits_memory(new_shapes):
            continue
        inputs = generate_inputs(trace.target.inputs, RANDOM, number, new_shapes)
        trial = try_input(trace, VerificationInput(f"size {other}", inputs))
        if trial is None:
            refused.append(other)
        elif trial.difference is not None:
            return [size], []
        else:
            right.append(other)
    return right, refused


def _assert_calls(trace: Trace, entrance: InputSpec) -> None:
    """Raise `Refusal` unless all calls of the target are accepted and correct."""
    for index, inputs in enumerate(trace.target.inputs):
        trial = try_input(trace, VerificationInput(f"call {index}", inputs))
        if trial is not None and trial.difference is not None:
            decisions = _size_decisions(trace)
            raise Refusal(_captured_one(trial, decisions[0] if decisions else None))
        if not entrance.fits(inputs):
            raise Refusal(
                f"the sizes of call {index} differ from those of call 0, and the trace"
                " keeps the latter: use --artifact aoti"
            )


# -- the file --------------------------------------------------------------------------


def _device(trace: Trace) -> str:
    """`cuda:0` if the trace itself names that device."""
    device = trace.target.device
    if device == "cpu":
        return device
    named = "cuda:0" in str(trace.model.inlined_graph)
    return "cuda:0" if named else device


def _save(model: Any, file: Path) -> None:
    """Save without TorchScript's debug files, which hold paths and source code."""
    raw = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)  # from torch 2.15 on
        torch.jit.save(model, raw)
    with zipfile.ZipFile(raw) as whole, zipfile.ZipFile(file, "w") as saved:
        for entry in whole.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                saved.writestr(entry, whole.read(entry))
