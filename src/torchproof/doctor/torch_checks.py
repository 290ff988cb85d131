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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchproof import process
from torchproof.doctor import package_checks
from torchproof.doctor.row import Problem, Row
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
_RANGE = supported_torch()
_INSTALL = f"install a torch from {_RANGE}"


def main(arguments: Sequence[str] = ()) -> int:
    process.hold()
    channel = process.Channel.to_parent()
    torch_works = True
    for row in ROWS:
        if torch_works or row is FORK:
            channel.send({"begins": row.name})
            checks = row.checks()
            torch_works = row is not TORCH or checks[0].status != "missing"
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
        action = f"{_INSTALL}, or a newer torchproof"
        raise Problem(value, status="degraded", means=note, action=action)
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
            _INSTALL,
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
        raise Problem(
            "a compiled function ran eager",
            status="degraded",
            means="torch.compile is switched off: no verb has anything to observe",
            action="unset TORCH_COMPILE_DISABLE and TORCHDYNAMO_DISABLE",
        )
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
        yield from NO_GPU.checks(*builds, warned)
    for number, facts in enumerate(found):
        yield from gpu(number, **facts)
    for row in (TRITON, C_COMPILER) if count else ():
        yield from row.checks()


def no_gpu(cuda_build: str | None, rocm_build: str | None, warned: str) -> str:
    """No GPU, or one that this torch cannot use."""
    driver = _driver()
    if rocm_build:
        raise Problem("a torch build for ROCm")
    if driver and not cuda_build:
        raise Problem(
            f"NVIDIA driver {driver}, but torch is a CPU build",
            status="degraded",
            means="the GPU is not used",
            action="install a CUDA build of torch:"
            " https://pytorch.org/get-started/locally",
            optional=False,
        )
    if driver and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        raise Problem(
            warned or f"driver {driver}, no usable GPU",
            action=CUDA.action,
            optional=False,
        )
    raise Problem("none")


def _driver() -> str:
    """The version of NVIDIA's kernel module; empty if there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    words = text.split()
    return next((w for w in words if w[:1].isdigit() and "." in w), "unknown")


def _device(number: int) -> dict[str, Any]:
    """The arguments of `gpu`, after a kernel ran, or with its error."""
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


def gpu(number: int, **facts: Any) -> list[MachineCheck]:
    """The check of one GPU."""
    row = Row(
        "GPU",
        f"cuda:{number}",
        _gpu,
        "no kernel runs on this GPU",
        "see nvidia-smi: another process may use all of it; or install a torch build"
        " for this GPU",
        fine="a kernel ran",
    )
    return row.checks(facts)


def _gpu(facts: Mapping[str, Any]) -> str:
    major, minor = facts["capability"]
    total = numbers.size(facts["total"])
    value = f"{facts['name']}, capability {major}.{minor}, {total}"
    if facts["error"]:
        raise Problem(f"{value}: {facts['error']}")
    value += f" ({numbers.size(facts['free'])} free), driver {_driver() or '-'}"
    if (major, minor) < _TRITON_CAPABILITY:
        raise Problem(
            value,
            status="degraded",
            means="Triton needs capability 7.0: torch.compile generates no code for"
            " this GPU",
            action="use --device cpu, or a newer GPU",
        )
    if facts["free"] < _FULL_BYTES:
        raise Problem(
            value,
            status="degraded",
            means="another process uses nearly all of its memory: models do not fit,"
            " and times are not to be trusted",
            action="end the other process (nvidia-smi lists it), or set"
            " CUDA_VISIBLE_DEVICES",
        )
    return value


def _triton() -> str:
    version: str = importlib.import_module("triton").__version__
    return version


def _c_compiler() -> str:
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


# -- the table -------------------------------------------------------------------------

FORK = Row(
    "permissions",
    "fork",
    _fork,
    "fix and pack --for repro cannot run their trials",
    "allow this container or account to start more processes",
)
TORCH = Row(
    "torch",
    "torch",
    _torch,
    "no model can be run; only show, compare, log, rule and static checks work",
    f"{_INSTALL} and see that `python -c 'import torch'` works",
    fine=f"supported: {_RANGE}",
)
HOOKS = Row(
    "torch",
    "hooks",
    _hooks,
    "torchproof cannot observe the compiler of this torch",
    f"first cure the other lines, as of caches; then use a torch from {_RANGE}",
    fine="every feature is available",
)
DYNAMO = Row(
    "torch",
    "torch.compile",
    _dynamo,
    "Dynamo traces no function: nothing can be compiled",
    "first cure the other lines, as of caches; then see whether torch supports this"
    " Python",
    fine="Dynamo works",
)
CUDA = Row(
    "GPU",
    "CUDA",
    _cuda,
    "everything but CUDA graphs works on the CPU",
    "see whether nvidia-smi works and the driver is new enough",
)
NO_GPU = Row("GPU", "CUDA", no_gpu, CUDA.means, optional=True)
TRITON = Row(
    "GPU",
    "triton",
    _triton,
    "torch.compile generates no code for GPUs",
    "install the triton that your torch names as a dependency",
)
C_COMPILER = Row(
    "GPU",
    "C compiler",
    _c_compiler,
    "Triton cannot build the launchers of its kernels",
    "install gcc, or set CC",
    fine="for Triton's launchers",
)
ROWS = (FORK, TORCH, HOOKS, DYNAMO, CUDA)

if __name__ == "__main__":
    sys.exit(main())
