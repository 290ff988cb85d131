"""`--artifact aoti`: exports the model and compiles it ahead of time, with its weights.

Takes the loaded target. Writes `model.pt2` to the stage, returns the manifest's
details, and writes the verification inputs for a process without the model's code.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchproof.packs.deploy import verification_inputs
from torchproof.packs.deploy.blocked_modules import model_modules
from torchproof.packs.deploy.tensor_function import (
    FlatTarget,
    Refusal,
    copied,
    flatten_target,
    preserved,
)
from torchproof.records import Frame, UserError, one_line, place_of, shown
from torchproof.runtime import AOTI_FILE, InputSpec, Range, Unfit
from torchproof.targets import Loaded
from torchproof.torch_private import export


def build(loaded: Loaded, stage: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    """Build the package and return the manifest's details.

    Raises `Refusal` if no package is possible. `job["questions"]` is a file outside
    the stage; `job["fresh"]` are calls of the factory with another seed.
    """
    if job["train"]:
        raise UserError("--artifact aoti supports only inference: omit --train")
    flat_target = flatten_target(loaded)
    assert_runs(flat_target)
    verification_inputs.assert_repeats(flat_target)
    exported_model = exported(flat_target)
    output = flat_target.flat.output  # includes numbers that depend on sizes
    entrance = verification_inputs.limited(
        flat_target, entrance_of(flat_target, exported_model)
    )
    with torch.no_grad():
        try:
            export.compile_package(exported_model.program, stage / AOTI_FILE)
        except Exception as error:
            raise Refusal(
                f"the exported model does not compile: {line_of(error)}"
            ) from error
    inputs = [
        *verification_inputs.of_calls(
            flat_target, job.get("fresh", ()), " of another seed"
        ),
        *verification_inputs.of_calls(flat_target, loaded.calls, ""),
        *verification_inputs.of_sizes(flat_target, entrance),
    ]
    names = verification_inputs.write(flat_target, inputs, Path(job["questions"]))
    return {
        "artifact": "aoti",
        "device": flat_target.device,
        "call": flat_target.call,
        "output": output,
        "takes": str(entrance),
        "entrance": entrance.to_json(),
        "weights": True,
        "asked": names,
        "without": model_modules(flat_target.fn, loaded),
        "files": {AOTI_FILE: "compiled code, its C++ source and the model's weights"},
    }


def assert_runs(flat_target: FlatTarget) -> None:
    """Run every call in eager, which also determines the output's structure."""
    for index, inputs in enumerate(flat_target.inputs):
        try:
            with preserved(flat_target.flat), torch.no_grad():
                flat_target.flat(*[copied(t) for t in inputs])
        except Unfit as error:
            raise Refusal(str(error)) from None
        except Exception as error:
            line = f"{type(error).__name__}: {error}"
            raise UserError(
                f"the target fails in eager at call {index}: {line}"
            ) from error


def exported(flat_target: FlatTarget) -> export.Exported:
    """Export the model; dimensions that differ between calls become dynamic."""
    shapes = [[tuple(t.shape) for t in inputs] for inputs in flat_target.inputs]
    changing = [
        [d for d in range(len(shapes[0][i])) if len({s[i][d] for s in shapes}) > 1]
        for i in range(len(flat_target.labels))
    ]
    small = any(
        s[i][d] < 2 for s in shapes for i, dims in enumerate(changing) for d in dims
    )
    example = max(flat_target.inputs, key=lambda inputs: sum(t.numel() for t in inputs))
    tensors = [copied(t) for t in example]
    try:
        with preserved(flat_target.flat), torch.no_grad():
            return export.export(flat_target.flat, tensors, changing, small=small)
    except Exception as error:
        raise Refusal(f"the model cannot be exported: {line_of(error)}") from error


def entrance_of(flat_target: FlatTarget, exported_model: export.Exported) -> InputSpec:
    """The inputs that the package accepts; all calls of the target must be accepted."""
    ranges = {
        name: Range(low, high) for name, (low, high) in exported_model.bounds.items()
    }
    tensors, conditions = (
        flat_target.taken(exported_model.sizes),
        exported_model.conditions,
    )
    if conditions is None:  # torch assumed more than a condition on sizes
        raise Refusal(
            "export made assumptions about the inputs other than their sizes, which"
            " cannot be checked before a call: use calls of one size"
        )
    entrance = InputSpec(tensors, ranges, conditions)
    for index, inputs in enumerate(flat_target.inputs):
        try:
            entrance.assert_fits([copied(t) for t in inputs])
        except Unfit as error:
            raise Refusal(
                f"export fixed a size that differs between the calls: call {index}:"
                f" {error}"
            ) from None
    return entrance


def line_of(error: BaseException) -> str:
    """torch's reason and the user's source line, in one line."""
    reason = one_line(str(error).strip().partition("\n\n")[0] or repr(error), 300)
    frames = [
        Frame(f.filename, f.lineno or 0, f.name, f.line or "")
        for f in traceback.extract_tb(error.__traceback__)
    ]
    place = place_of(frames).frame
    if place is None:
        return reason
    return f"{shown(place.file)}:{place.line}: {place.code.strip()}: {reason}"
