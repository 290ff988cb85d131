"""Builds and verifies packages, which need none of the model's code.

`build` writes the package to the stage, and the verification inputs with eager's
outputs beside it. `verify` runs them in a process that cannot import the model's code.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import torch

from torchproof.packs.deploy import PackJob, aoti, torchscript, verification_inputs
from torchproof.packs.deploy.tensor_function import Refusal, flatten_target
from torchproof.records import schema, whose
from torchproof.runtime import (
    PACKAGE_FILES,
    DeployedModel,
    PackageDetails,
    PytreeSpec,
    Unverified,
    compatibility,
    example_inputs,
    load_package,
    open_pack,
)
from torchproof.targets import Loaded
from torchproof.torch_private import comparison

_BUILDERS = {"aoti": aoti.build, "torchscript": torchscript.build}
_QUESTIONS = "questions.pt"


def build(loaded: Loaded, job: PackJob) -> PackageDetails:
    """Write the package. Raises `Unverified` with the reason if none is possible."""
    described = [example_inputs.describe(call) for call in loaded.calls]
    seeded = [example_inputs.make(d, seed=1) for d in described if d.why_not is None]
    try:
        flat = flatten_target(loaded)
        verification_inputs.assert_repeats(flat)
        fresh = list(verification_inputs.of_calls(flat, seeded, " of another seed"))
        file = Path(job.stage, PACKAGE_FILES[job.artifact])
        package = _BUILDERS[job.artifact](flat, fresh, file)
    except Refusal as error:
        raise Unverified(str(error)) from error
    inputs = [
        *fresh,
        *verification_inputs.of_calls(flat, loaded.calls, ""),
        *verification_inputs.of_sizes(flat, package.entrance),
    ]
    accepted = [each for each in inputs if package.entrance.fits(each.inputs)]
    names = verification_inputs.write(flat, accepted, Path(job.scratch, _QUESTIONS))
    return PackageDetails(
        artifact="aoti" if job.artifact == "aoti" else "torchscript",
        device=package.device,
        call=flat.call,
        entrance=package.entrance,
        output=package.output,
        place=compatibility.place_here(flat.device),
        takes=str(package.entrance),
        asked=tuple(names),
        without=tuple(_model_modules(flat.fn, loaded)),
        notes=package.notes,
    )


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


def verify(job: PackJob) -> dict[str, Any]:
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
    deployed: DeployedModel, question: Mapping[str, Any], kinds: Sequence[str]
) -> comparison.Comparison:
    inputs = question["inputs"]
    bound = deployed.details.call.bound(inputs)
    output = deployed(*bound.args, **bound.kwargs)
    form = schema.build(PytreeSpec, question["form"])
    expected = verification_inputs.EagerResult(
        question["tensors"], form, question["after"]
    )
    types = [getattr(torch, name.removeprefix("torch.")) for name in kinds]
    return expected.compare(output, inputs, types)
