"""`--artifact torchscript`: traces the model, if the trace is valid for every input.

A trace records one path through the code. This module runs the model on inputs with
many values and sizes. It refuses to build a package if an input takes another path and
the trace's outputs differ, or if no input takes the other side of a branch.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torchproof.packs.deploy import path_coverage, verification_inputs
from torchproof.packs.deploy.aoti import assert_runs, line_of
from torchproof.packs.deploy.blocked_modules import model_modules
from torchproof.packs.deploy.input_generators import (
    RANDOM,
    VALUE_GENERATORS,
    Tensors,
    fits_memory,
    generate_inputs,
    other_sizes,
)
from torchproof.packs.deploy.package_worker import compare_with_eager
from torchproof.packs.deploy.path_coverage import At, ExecutionPath
from torchproof.packs.deploy.tensor_function import (
    FlatTarget,
    Refusal,
    copied,
    flatten_target,
    preserved,
)
from torchproof.packs.deploy.verification_inputs import VerificationInput
from torchproof.records import UserError, one_line
from torchproof.runtime import TORCHSCRIPT_FILE, InputSpec, Range, pytree_json
from torchproof.targets import Loaded

_SEEDS = 3  # seeds for random values; each other generator runs once


@dataclass(frozen=True)
class Trial:
    """One input: eager's path, and how the trace's output differs, if it does."""

    name: str
    path: ExecutionPath
    difference: str | None


@dataclass
class Trace:
    """The traced model, the path it was traced on, and torch's warnings."""

    flat_target: FlatTarget
    model: Any
    path: ExecutionPath
    output: pytree_json.PytreeSpec
    warned: list[str]
    kinds: list[torch.dtype] = field(default_factory=list)


def build(loaded: Loaded, stage: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    """Build the package and return the manifest's details.

    Raises `Refusal` if no package is possible.
    """
    if job["train"]:
        raise UserError("--artifact torchscript supports only inference: omit --train")
    flat_target = flatten_target(loaded)
    assert_runs(flat_target)
    verification_inputs.assert_repeats(flat_target)
    trace = traced(flat_target)
    fresh = list(
        verification_inputs.of_calls(
            flat_target, job.get("fresh", ()), " of another seed"
        )
    )
    notes = _assert_holds(
        trace, [*_values(flat_target), *_same_sizes(flat_target, fresh)]
    )
    entrance = sizes_of(trace)
    _save(trace.model, stage / TORCHSCRIPT_FILE)
    inputs = [
        *fresh,
        *verification_inputs.of_calls(flat_target, loaded.calls, ""),
        *verification_inputs.of_sizes(flat_target, entrance),
    ]
    inputs = [q for q in inputs if _taken(entrance, q)]
    names = verification_inputs.write(flat_target, inputs, Path(job["questions"]))
    return {
        "artifact": "torchscript",
        "device": _device(trace),
        "call": flat_target.call,
        "output": trace.output,
        "takes": str(entrance),
        "entrance": entrance.to_json(),
        "weights": True,
        "asked": names,
        "without": model_modules(flat_target.fn, loaded),
        "notes": [
            *notes,
            "torch.jit.trace is deprecated; use it only for old runtimes",
        ],
        "warnings": trace.warned,
        "files": {TORCHSCRIPT_FILE: "the traced operations and the model's weights"},
    }


def traced(flat_target: FlatTarget) -> Trace:
    """Trace the first call."""
    inputs = tuple(copied(t) for t in flat_target.inputs[0])
    with (
        warnings.catch_warnings(record=True) as caught,
        preserved(flat_target.flat),
        torch.no_grad(),
        path_coverage.record_path() as path,
    ):
        warnings.simplefilter("always")
        try:
            jit: Any = torch.jit  # its stubs lack types
            model = jit.trace(flat_target.flat, inputs, check_trace=False)
        except Exception as error:
            raise Refusal(f"the model cannot be traced: {line_of(error)}") from error
    output = flat_target.flat.output
    warned = [
        one_line(str(each.message), 160)
        for each in caught
        if issubclass(each.category, torch.jit.TracerWarning)
    ]
    weights = [
        t.dtype for t in (*flat_target.flat.parameters(), *flat_target.flat.buffers())
    ]
    kinds = [kind for kind in weights if kind.is_floating_point]
    verification_inputs.eager(
        flat_target, VerificationInput("the traced call", flat_target.inputs[0])
    )
    output = _with_numbers(output, flat_target.flat.output)
    return Trace(
        flat_target=flat_target,
        model=model,
        path=path,
        output=output,
        warned=warned,
        kinds=kinds,
    )


def _with_numbers(
    trace: pytree_json.PytreeSpec, eager: pytree_json.PytreeSpec
) -> pytree_json.PytreeSpec:
    """The trace's output structure; a tensor there is a number where eager has one."""
    if "tensor" in trace and "value" in eager:
        return {"number": trace["tensor"]}
    structure = dict(trace)
    for key in ("list", "tuple"):
        if key in trace and len(trace[key]) == len(eager.get(key, ())):
            pairs = zip(trace[key], eager[key], strict=True)
            structure[key] = [_with_numbers(a, b) for a, b in pairs]
    for key in ("dict", "fields"):
        if key in trace and key in eager:
            others = dict(eager[key])
            structure[key] = [
                [k, _with_numbers(v, others.get(k, v))] for k, v in trace[key]
            ]
    return structure


# -- values ----------------------------------------------------------------------------


def _values(flat_target: FlatTarget) -> Iterator[tuple[VerificationInput, bool]]:
    """Generated inputs of the traced sizes, and whether their values are special."""
    for seed in range(_SEEDS):
        yield (
            VerificationInput(
                RANDOM.name, generate_inputs(flat_target.inputs, RANDOM, seed)
            ),
            False,
        )
    for number, values in enumerate(VALUE_GENERATORS[1:], _SEEDS):
        yield (
            VerificationInput(
                values.name, generate_inputs(flat_target.inputs, values, number)
            ),
            values.special,
        )


def _same_sizes(
    flat_target: FlatTarget, fresh: Sequence[VerificationInput]
) -> Iterator[tuple[VerificationInput, bool]]:
    shapes = [t.shape for t in flat_target.inputs[0]]
    calls = [
        VerificationInput(f"call {i}", inputs)
        for i, inputs in enumerate(flat_target.inputs)
    ]
    for verification_input in (*calls, *fresh):
        if [t.shape for t in verification_input.inputs] == shapes:
            yield verification_input, False


def _assert_holds(
    trace: Trace, inputs: Sequence[tuple[VerificationInput, bool]]
) -> list[str]:
    """Raise `Refusal` if the trace is invalid; return notes on values that it keeps."""
    trials: list[Trial] = []
    for verification_input, special in inputs:
        trial = try_input(trace, verification_input)
        if trial is None:  # eager fails on this input
            continue
        other = _other_way(trace, trials, trial)
        if trial.difference is None:
            trials.append(trial)
        elif other is not None or not special:
            raise Refusal(_captured_one(trial, other))
    return list(_notes(trace, trials))


def try_input(trace: Trace, verification_input: VerificationInput) -> Trial | None:
    flat_target = trace.flat_target
    try:
        with preserved(flat_target.flat), path_coverage.record_path() as path:
            eager = verification_inputs.eager(flat_target, verification_input)
    except Exception:  # generated inputs may be invalid for the model
        return None
    inputs = [copied(t) for t in verification_input.inputs]
    try:
        with preserved(flat_target.flat), torch.no_grad():
            torch.manual_seed(0)
            answer = [t.detach() for t in trace.model(*inputs)]
    except Exception as error:
        reason = str(error).strip().splitlines()[-1]
        return Trial(
            verification_input.name, path, f"the trace fails: {one_line(reason, 200)}"
        )
    plain: Tensors = []
    form = pytree_json.flatten(
        pytree_json.rebuild(trace.output, answer), plain, "output"
    )
    if (off := pytree_json.difference(form, eager.form, "output")) is not None:
        return Trial(verification_input.name, path, off)
    comparison = compare_with_eager(
        plain, inputs, eager.tensors, eager.inputs, kinds=trace.kinds
    )
    off = (
        f"{comparison.where}: {comparison.why}"
        if comparison.verdict == "wrong"
        else None
    )
    return Trial(verification_input.name, path, off)


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
    flat_target = trace.flat_target
    shapes = [tuple(t.shape) for t in flat_target.inputs[0]]
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
    entrance = InputSpec(flat_target.taken(sizes), ranges)
    _assert_calls(trace, entrance)
    return entrance


def _size_decisions(trace: Trace) -> list[At]:
    """The lines where the trace reads a size as a tensor's value; eager does not."""
    flat_target = trace.flat_target
    with preserved(flat_target.flat), path_coverage.record_path() as usual:
        verification_inputs.eager(
            flat_target, VerificationInput("the traced call", flat_target.inputs[0])
        )
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
        inputs: Tensors = generate_inputs(
            trace.flat_target.inputs, RANDOM, number, new_shapes
        )
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
    for index, inputs in enumerate(trace.flat_target.inputs):
        verification_input = VerificationInput(f"call {index}", inputs)
        trial = try_input(trace, verification_input)
        if trial is not None and trial.difference is not None:
            decisions = _size_decisions(trace)
            raise Refusal(_captured_one(trial, decisions[0] if decisions else None))
        if not _taken(entrance, verification_input):
            raise Refusal(
                f"the sizes of call {index} differ from those of call 0, and the trace"
                " keeps the latter: use --artifact aoti"
            )


def _taken(entrance: InputSpec, verification_input: VerificationInput) -> bool:
    try:
        entrance.assert_fits([copied(t) for t in verification_input.inputs])
    except pytree_json.Unfit:
        return False
    return True


# -- the file --------------------------------------------------------------------------


def _device(trace: Trace) -> str:
    """`cuda:0` if the trace itself names that device."""
    device = trace.flat_target.device
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
