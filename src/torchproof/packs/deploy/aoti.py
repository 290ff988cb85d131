"""`--artifact aoti`: exports the model and compiles it ahead of time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from torchproof.packs.deploy import verification_inputs
from torchproof.packs.deploy.tensor_function import (
    FlatTarget,
    Package,
    Refusal,
    copied,
    line_of,
    preserved,
)
from torchproof.packs.deploy.verification_inputs import VerificationInput
from torchproof.runtime import InputSpec, Range, Unfit
from torchproof.torch_private import export


def build(
    target: FlatTarget, fresh: Sequence[VerificationInput], file: Path
) -> Package:
    """Write the package to `file`. Raises `Refusal` if none is possible."""
    exported_model = exported(target)
    output = target.flat.output  # includes numbers that depend on sizes
    entrance = entrance_of(target, exported_model)
    entrance = verification_inputs.limited(target, entrance)
    with torch.no_grad():
        try:
            export.compile_package(exported_model.program, file)
        except Exception as error:
            raise Refusal(
                f"the exported model does not compile: {line_of(error)}"
            ) from error
    return Package(entrance, output, target.device)


def exported(target: FlatTarget) -> export.Exported:
    """Export the model; dimensions that differ between calls become dynamic."""
    shapes = [[tuple(t.shape) for t in inputs] for inputs in target.inputs]
    changing = [
        [d for d in range(len(shapes[0][i])) if len({s[i][d] for s in shapes}) > 1]
        for i in range(len(target.labels))
    ]
    small = any(
        s[i][d] < 2 for s in shapes for i, dims in enumerate(changing) for d in dims
    )
    example = max(target.inputs, key=lambda inputs: sum(t.numel() for t in inputs))
    tensors = [copied(t) for t in example]
    try:
        with preserved(target.flat), torch.no_grad():
            return export.export(target.flat, tensors, changing, small=small)
    except Exception as error:
        raise Refusal(f"the model cannot be exported: {line_of(error)}") from error


def entrance_of(target: FlatTarget, exported_model: export.Exported) -> InputSpec:
    """The inputs that the package accepts; all calls of the target must be accepted."""
    if exported_model.conditions is None:  # torch assumed more than sizes
        raise Refusal(
            "export made assumptions about the inputs other than their sizes, which"
            " cannot be checked before a call: use calls of one size"
        )
    ranges = {
        name: Range(low, high) for name, (low, high) in exported_model.bounds.items()
    }
    tensors = target.taken(exported_model.sizes)
    entrance = InputSpec(tensors, ranges, exported_model.conditions)
    for index, inputs in enumerate(target.inputs):
        try:
            entrance.assert_fits(inputs)
        except Unfit as error:
            raise Refusal(
                f"export fixed a size that differs between the calls: call {index}:"
                f" {error}"
            ) from None
    return entrance
