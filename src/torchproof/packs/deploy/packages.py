"""`--artifact aoti`: builds and verifies packages, which need no code of the model.

`build` exports the model, compiles it ahead of time into the stage, and writes the
verification inputs with eager's outputs. `verify` runs them in a process that cannot
import the model's code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import torch

from torchproof.packs.deploy import PackJob, verification_inputs
from torchproof.packs.deploy.tensor_function import (
    FlatTarget,
    Refusal,
    copied,
    flatten_target,
    line_of,
    preserved,
)
from torchproof.packs.deploy.verification_inputs import Question
from torchproof.records import JsonObject, schema, whose
from torchproof.runtime import (
    PACKAGE_FILE,
    DeployedModel,
    InputSpec,
    PackageDetails,
    Range,
    Unverified,
    compatibility,
    example_inputs,
    load_package,
    open_pack,
)
from torchproof.targets import Loaded
from torchproof.torch_private import Structure, Unfit, comparison, export

_QUESTIONS = "questions.pt"


def build(loaded: Loaded, job: PackJob) -> PackageDetails:
    """Write the package. Raises `Unverified` with the reason if none is possible."""
    described = [example_inputs.describe(call) for call in loaded.calls]
    seeded = [example_inputs.make(d, seed=1) for d in described if d.why_not is None]
    try:
        flat = flatten_target(loaded)
        verification_inputs.assert_repeats(flat)
        fresh = list(verification_inputs.of_calls(flat, seeded, " of another seed"))
        exported = exported_model(flat)
        output = flat.flat.output  # includes numbers that depend on sizes
        entrance = entrance_of(flat, exported)
        entrance = verification_inputs.limited(flat, entrance)
        _compile(exported, Path(job.stage, PACKAGE_FILE))
    except Refusal as error:
        raise Unverified(str(error)) from error
    inputs = [
        *fresh,
        *verification_inputs.of_calls(flat, loaded.calls, ""),
        *verification_inputs.of_sizes(flat, entrance),
    ]
    accepted = [each for each in inputs if entrance.fits(each.inputs)]
    names = verification_inputs.write(flat, accepted, Path(job.scratch, _QUESTIONS))
    return PackageDetails(
        artifact="aoti",
        device=flat.device,
        call=flat.call,
        entrance=entrance,
        output=output,
        place=compatibility.place_here(flat.device),
        takes=str(entrance),
        asked=tuple(names),
        without=tuple(_model_modules(flat.fn, loaded)),
    )


def exported_model(target: FlatTarget) -> export.Exported:
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


def entrance_of(target: FlatTarget, exported: export.Exported) -> InputSpec:
    """The inputs that the package accepts; all calls of the target must be accepted."""
    if exported.conditions is None:  # torch assumed more than sizes
        raise Refusal(
            "export made assumptions about the inputs other than their sizes, which"
            " cannot be checked before a call: use calls of one size"
        )
    ranges = {name: Range(low, high) for name, (low, high) in exported.bounds.items()}
    tensors = target.taken(exported.sizes)
    entrance = InputSpec(tensors, ranges, exported.conditions)
    for index, inputs in enumerate(target.inputs):
        try:
            entrance.assert_fits(inputs)
        except Unfit as error:
            raise Refusal(
                f"export fixed a size that differs between the calls: call {index}:"
                f" {error}"
            ) from None
    return entrance


def _compile(exported: export.Exported, file: Path) -> None:
    with torch.no_grad():
        try:
            export.compile_package(exported.program, file)
        except Exception as error:
            raise Refusal(
                f"the exported model does not compile: {line_of(error)}"
            ) from error


def _model_modules(fn: Any, loaded: Loaded) -> list[str]:
    """The modules of the model's classes and functions and of its factory."""
    owners = {type(fn), fn}
    if isinstance(fn, torch.nn.Module):
        owners |= {type(part) for part in fn.modules()}
    names = {getattr(owner, "__module__", None) for owner in owners}
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == loaded.place.file:
            names.add(name)
    return sorted(
        name
        for name in names
        if name in sys.modules
        and name != "__main__"
        and whose(getattr(sys.modules[name], "__file__", None) or "<none>")
        in ("user", "library")
    )


# -- verification ----------------------------------------------------------------------


class _Blocked(MetaPathFinder):
    """Blocks imports of the model's modules, as on a machine without its code."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = set(modules)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in self.modules:
            raise ModuleNotFoundError(
                f"no module {name!r}: the model's code is blocked"
            )


def verify(job: PackJob) -> JsonObject:
    """Run the package on the verification inputs, with the model's modules blocked."""
    contents = open_pack(job.stage)
    sys.meta_path.insert(0, _Blocked(contents.manifest.details["without"]))
    deployed = load_package(contents)
    verification = torch.load(Path(job.scratch, _QUESTIONS), weights_only=True)
    worst = 0.0
    for question in verification["questions"]:
        try:
            found = _ask(deployed, question, verification["kinds"])
        except Exception as error:
            found = comparison.wrong(f"{type(error).__name__}: {error}", "the call")
        if found.verdict == "wrong":
            raise Unverified(
                f"the package's output differs from the model's on {question['name']}:"
                f" {found.where}: {found.why}"
            )
        worst = max(worst, found.max_rel_error or 0.0)
    count = len(verification["questions"])
    return {"ok": True, "answers": count, "max_rel_error": worst}


def _ask(
    deployed: DeployedModel, question: Question, kinds: Sequence[str]
) -> comparison.Comparison:
    inputs = question["inputs"]
    args, kwargs = deployed.details.call.split(inputs)
    output = deployed(*args, **kwargs)
    form = schema.build(Structure, question["form"])
    expected = verification_inputs.EagerResult(
        question["tensors"], form, question["after"]
    )
    types = [getattr(torch, name.removeprefix("torch.")) for name in kinds]
    return expected.compare(output, inputs, types)
