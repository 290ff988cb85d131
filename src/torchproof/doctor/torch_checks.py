"""The child process of `torchproof doctor`: imports torch and tries what it does.

It sends one message before and one after each row, so that a crash or a hang loses only
the row in which it happens.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchproof import process
from torchproof.doctor import package_checks
from torchproof.doctor.table import Problem, tried
from torchproof.records import (
    MachineCheck,
    installed_torch,
    supported_torch,
    untested_torch,
)
from torchproof.report import numbers

_FULL_BYTES = 2**30  # less free memory than this, and a model rarely fits
_TRITON_CAPABILITY = (7, 0)
_C = ("gcc", "clang")


def main(arguments: Sequence[str] = ()) -> int:
    process.hold()
    channel = process.Channel.to_parent()
    torch_works = True
    for key, look in ROWS.items():
        if torch_works:
            channel.send({"begins": key})
            checks = tried(key, look)
            torch_works = key != "torch" or checks[0].status != "missing"
            channel.send({"checks": [check.to_json() for check in checks]})
    channel.send({"errors": import_errors()})
    return 0


def _fork() -> str:
    """Before torch is imported: this process has one thread."""
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 7:
        raise Problem(f"a forked process ended with {code}")
    return "a process was forked"


def _torch() -> str:
    started = time.monotonic()
    try:
        import torch
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise Problem(f"{installed_torch()}: {said}") from None
    seconds = time.monotonic() - started
    value = f"{torch.__version__}, imported in {seconds:.1f} s"
    if note := untested_torch():
        raise Problem(value, "untested", note=note)
    return value


def _hooks() -> str | list[MachineCheck]:
    """One line if all are there; otherwise one for each feature that lacks a name."""
    from torchproof.torch_private import contract

    features = contract.contract()
    names = sum(len(each) for feature in features for each in feature.hooks.values())
    lacking = [
        MachineCheck(
            "torch",
            f"hooks: {each.name}",
            "degraded",
            messages[0],
            each.without,
            f"install a torch from {supported_torch()}",
        )
        for each in features
        if (messages := contract.missing(each.name))
    ]
    return lacking or f"{names} private names for {len(features)} features"


def _dynamo() -> str:
    """Traces a function and runs its graph, without generating code."""
    import torch

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    result = torch.compile(double, backend=backend)(torch.ones(2))
    return traced(len(graphs), bool((result == 2).all()))


def traced(graphs: int, is_right: bool) -> str:
    if not is_right:
        raise Problem("a compiled function returned a wrong result")
    if not graphs:
        raise Problem("a compiled function ran eager", "off")
    return "traced a function"


# -- GPUs ------------------------------------------------------------------------------


def _cuda() -> Iterator[MachineCheck]:
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        found = [_device(number) for number in range(count)]
    if not count:
        builds = torch.version.cuda, torch.version.hip
        warned = "; ".join(" ".join(str(each.message).split()) for each in caught)
        yield from tried("CUDA", no_gpu, *builds, warned)
    for number, facts in enumerate(found):
        yield from tried("device", gpu, facts, number=number)
    if count:
        yield from tried("triton", triton)
        yield from tried("C compiler", c_compiler)


def no_gpu(cuda_build: str | None, rocm_build: str | None, warned: str) -> str:
    """No GPU, or one that this torch cannot use."""
    driver = _driver()
    if rocm_build:
        raise Problem("a torch build for ROCm", "none")
    if driver and not cuda_build:
        said = f"NVIDIA driver {driver}, but torch is a CPU build"
        raise Problem(said, "cpu_build")
    if driver and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        raise Problem(warned or f"driver {driver}, no usable GPU")
    raise Problem("none", "none")


def _driver() -> str:
    """The version of NVIDIA's kernel module; empty if there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    words = text.split()
    return next((w for w in words if w[:1].isdigit() and "." in w), "unknown")


def _device(number: int) -> dict[str, Any]:
    """What `gpu` needs to know, after a kernel ran, or with its error."""
    import torch

    properties = torch.cuda.get_device_properties(number)
    free, error = 0, ""
    try:
        assert torch.ones(8, device=f"cuda:{number}").sum().item() == 8
        free = torch.cuda.mem_get_info(number)[0]
    except Exception as raised:
        error = " ".join(str(raised).split()) or type(raised).__name__
    return {
        "name": properties.name,
        "capability": (properties.major, properties.minor),
        "total": properties.total_memory,
        "free": free,
        "error": error,
    }


def gpu(facts: Mapping[str, Any]) -> str:
    major, minor = facts["capability"]
    total = numbers.size(facts["total"])
    value = f"{facts['name']}, capability {major}.{minor}, {total}"
    if facts["error"]:
        raise Problem(f"{value}: {facts['error']}")
    value += f" ({numbers.size(facts['free'])} free), driver {_driver() or '-'}"
    if (major, minor) < _TRITON_CAPABILITY:
        raise Problem(value, "old")
    if facts["free"] < _FULL_BYTES:
        raise Problem(value, "full")
    return value


def triton() -> str:
    version: str = importlib.import_module("triton").__version__
    return version


def c_compiler() -> str:
    named = os.environ.get("CC")
    found = next(filter(None, map(shutil.which, (named,) if named else _C)), None)
    if not found:
        raise Problem(named or " and ".join(_C))
    return found


# -- packages --------------------------------------------------------------------------


def import_errors() -> dict[str, str]:
    """The error of each installed package that cannot be imported.

    Those of extras need torch: where it fails they would only repeat its error.
    """
    errors = {}
    for name in package_checks.installed(extras="torch" in sys.modules):
        try:
            importlib.import_module(package_checks.module_of(name))
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    return errors


# What is tried, in this order.
ROWS: dict[str, Callable[[], str | Iterable[MachineCheck]]] = {
    "fork": _fork,
    "torch": _torch,
    "hooks": _hooks,
    "torch.compile": _dynamo,
    "CUDA": _cuda,
}

if __name__ == "__main__":
    sys.exit(main())
