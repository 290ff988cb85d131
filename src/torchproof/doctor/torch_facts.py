"""The child process of `torchproof doctor`: imports torch and tries what it does.

It sends one message before and one after each stage, so that a crash or a hang loses
only the stage in which it happens.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from torchproof import process
from torchproof.doctor import package_checks


class Stage(TypedDict, total=False):
    """The facts of a stage; `error` instead of them if it raised."""

    error: str


class Fork(Stage, total=False):
    code: int


class Torch(Stage, total=False):
    version: str
    seconds: float  # to import it
    cuda_build: str | None
    rocm_build: str | None


class Lacking(TypedDict):
    """A feature whose private names this torch has changed."""

    name: str
    without: str
    messages: Sequence[str]


class Hooks(Stage, total=False):
    features: int
    names: int
    lacking: Sequence[Lacking]


class Dynamo(Stage, total=False):
    graphs: int
    right: bool


class Device(TypedDict):
    """One GPU; `error` if no kernel runs on it."""

    name: str
    capability: list[int]
    total_bytes: int
    free_bytes: int
    error: str


class Triton(Stage, total=False):
    version: str


class Cuda(Stage, total=False):
    devices: Sequence[Device]
    warnings: Sequence[str]
    triton: Triton


class Packages(Stage, total=False):
    errors: Mapping[str, str]


class Ended(TypedDict):
    """How the process ended or hung early, and what it said last."""

    stage: str
    how: str
    said: str


class Facts(TypedDict, total=False):
    fork: Fork
    torch: Torch
    hooks: Hooks
    dynamo: Dynamo
    cuda: Cuda
    packages: Packages
    ended: Ended


def main(arguments: Sequence[str] = ()) -> int:
    process.hold()
    channel = process.Channel.to_parent()
    for name, stage in _STAGES.items():
        channel.send({"begins": name})
        try:
            facts: Stage = stage()
        except Exception as error:
            facts = {"error": f"{type(error).__name__}: {error}".strip()}
        channel.send({"stage": name, "facts": facts})
    channel.send({"end": True})
    return 0


def _fork() -> Fork:
    """Before torch is imported: this process has one thread."""
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    _, status = os.waitpid(pid, 0)
    return {"code": os.waitstatus_to_exitcode(status)}


def _torch() -> Torch:
    started = time.monotonic()
    import torch

    return {
        "version": str(torch.__version__),
        "seconds": time.monotonic() - started,
        "cuda_build": torch.version.cuda,
        "rocm_build": torch.version.hip,
    }


def _hooks() -> Hooks:
    """The private names that each feature needs, and what this torch lacks."""
    from torchproof.torch_private import contract

    features = contract.contract()
    names = sum(len(each) for feature in features for each in feature.hooks.values())
    lacking: list[Lacking] = [
        {"name": each.name, "without": each.without, "messages": messages}
        for each in features
        if (messages := contract.missing(each.name))
    ]
    return {"features": len(features), "names": names, "lacking": lacking}


def _dynamo() -> Dynamo:
    """Traces a function and runs its graph, without generating code."""
    import torch

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    result = torch.compile(double, backend=backend)(torch.ones(2))
    return {"graphs": len(graphs), "right": bool((result == 2).all())}


def _cuda() -> Cuda:
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        devices = [_device(number) for number in range(count)]
    messages = [" ".join(str(each.message).split()) for each in caught]
    return {"devices": devices, "warnings": messages, "triton": _triton(count)}


def _device(number: int) -> Device:
    """One GPU: a kernel runs on it, or the error."""
    import torch

    properties = torch.cuda.get_device_properties(number)
    facts: Device = {
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "total_bytes": properties.total_memory,
        "free_bytes": 0,
        "error": "",
    }
    try:
        assert torch.ones(8, device=f"cuda:{number}").sum().item() == 8
        facts["free_bytes"] = torch.cuda.mem_get_info(number)[0]
    except Exception as error:
        facts["error"] = " ".join(str(error).split()) or type(error).__name__
    return facts


def _triton(gpus: int) -> Triton:
    """Imported only where a GPU needs it."""
    if not gpus:
        return {}
    try:
        return {"version": importlib.import_module("triton").__version__}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _packages() -> Packages:
    """The error of each installed package that cannot be imported.

    Those of extras need torch: where it fails they would only repeat its error.
    """
    errors = {}
    for name in package_checks.installed(extras="torch" in sys.modules):
        try:
            importlib.import_module(package_checks.module_of(name))
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    return {"errors": errors}


_STAGES: dict[str, Callable[[], Stage]] = {
    "fork": _fork,
    "torch": _torch,
    "hooks": _hooks,
    "dynamo": _dynamo,
    "cuda": _cuda,
    "packages": _packages,
}

if __name__ == "__main__":
    sys.exit(main())
