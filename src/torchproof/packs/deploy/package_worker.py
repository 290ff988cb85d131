"""Verifies a package in a process that cannot import the model's code.

Runs as `python -m` with a job in JSON: the pack, the file of verification inputs and
the modules to block. Prints one JSON document.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from typing import Any

import torch

from torchproof.runtime import (
    ARTIFACTS,
    DeployedModel,
    open_pack,
    pytree_json,
)
from torchproof.torch_private import comparison


class Blocked(MetaPathFinder):
    """Blocks imports of the model's modules, as on a machine without its code."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = set(modules)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in self.modules:
            raise ModuleNotFoundError(
                f"no module {name!r}: the model's code is blocked"
            )


def main(arguments: list[str]) -> int:
    job = json.loads(arguments[0])
    sys.meta_path.insert(0, Blocked(job["blocked"]))
    contents = open_pack(job["pack"])
    artifact = contents.manifest.details["artifact"]
    try:
        deployed = ARTIFACTS[artifact](contents)
    except Exception as error:
        message = f"the package does not load: {type(error).__name__}: {error}"
        print(json.dumps({"ok": False, "where": "loading", "why": message}))
        return 1
    verification = torch.load(job["questions"], weights_only=True)
    answer = run_verification(deployed, verification)
    print(json.dumps(answer))
    return 0 if answer["ok"] else 1


def run_verification(
    deployed: DeployedModel, verification: Mapping[str, Any]
) -> dict[str, Any]:
    """Run all verification inputs in order; stop at the first wrong output."""
    kinds = [
        getattr(torch, name.removeprefix("torch.")) for name in verification["kinds"]
    ]
    worst = 0.0
    for question in verification["questions"]:
        try:
            found = _ask(deployed, question, kinds)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            return {"ok": False, "where": question["name"], "why": message}
        if found.verdict == "wrong":
            why = f"{found.where}: {found.why}"
            return {"ok": False, "where": question["name"], "why": why}
        worst = max(worst, found.max_rel_error or 0.0)
    count = len(verification["questions"])
    return {"ok": True, "answers": count, "max_rel_error": worst}


def _ask(
    deployed: DeployedModel, question: Mapping[str, Any], kinds: Sequence[torch.dtype]
) -> comparison.Comparison:
    call = deployed.details["call"]
    inputs = question["inputs"]
    named = {
        name: pytree_json.rebuild(form, inputs) for name, form in call["arguments"]
    }
    signature = pytree_json.signature_from(call["parameters"])
    bound = inspect.BoundArguments(signature, named)
    answer: list[torch.Tensor] = []
    output = deployed(*bound.args, **bound.kwargs)
    form = pytree_json.flatten(output, answer, "output")
    if (
        difference := pytree_json.difference(form, question["form"], "output")
    ) is not None:
        return comparison.wrong(difference, "output")
    answer = list(pytree_json.in_packed_order(form, question["form"], answer))
    return compare_with_eager(
        answer, inputs, question["tensors"], question["after"], kinds=kinds
    )


def compare_with_eager(
    answer: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    after: Sequence[torch.Tensor],
    *,
    kinds: Sequence[torch.dtype],
) -> comparison.Comparison:
    """Compare the outputs, and the inputs after the call, with eager's."""
    actual = {f"output {i}": t for i, t in enumerate(answer)}
    actual |= {f"input {i} after the call": t for i, t in enumerate(inputs)}
    eager = {f"output {i}": t for i, t in enumerate(expected)}
    eager |= {f"input {i} after the call": t for i, t in enumerate(after)}
    types = comparison.types_in_use(list(eager.values()), []) | set(kinds)
    tolerance = comparison.tolerance_for(types, eager.values())
    return comparison.compare(actual, eager, tolerance=tolerance)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
