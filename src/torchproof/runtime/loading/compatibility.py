"""Where compiled code was made, and whether it may run here.

Machine code is made for one processor, cubins for one kind of GPU, and both call into
one torch. What differs and could run wrongly is a refusal; what changes only how fast
it is, is told.
"""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from torchproof.torch_private import triton_version

Facts = dict[str, Any]
_CPUINFO = Path("/proc/cpuinfo")
_DRIVER = Path("/proc/driver/nvidia/version")
_MACHINE_CODE = {
    "torch": "torch",
    "commit": "torch of commit",
    "python": "Python",
    "machine": "machine",
    "isa": "CPU capability",
}
_OF_GPUS = {
    "cuda": "CUDA",
    "triton": "Triton",
    "gpu": "GPU",
    "capability": "compute capability",
}
_TOLD = {"cpu": "CPU", "threads": "threads", "hip": "HIP"}


def environment_facts(device: str) -> Facts:
    """Of this process; those of a GPU only where the model is on one."""
    found: Facts = {
        "torch": str(torch.__version__),
        "commit": torch.version.git_version,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": platform.machine(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "cpu": _cpuinfo("model name") or _cpuinfo("CPU part"),
        "features": sorted((_cpuinfo("flags") or _cpuinfo("Features") or "").split()),
        "threads": torch.get_num_threads(),
        "device": device,
    }
    if device == "cuda" and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        found |= {
            "cuda": torch.version.cuda,
            "triton": triton_version(),
            "gpu": torch.cuda.get_device_name(),
            "capability": f"{major}.{minor}",
            "driver": driver(),
        }
    return found


def device_of(model: Any) -> str | None:
    """Where a model is; None for a function, or a module without tensors."""
    for tensors in ("parameters", "buffers"):
        for tensor in getattr(model, tensors, tuple)():
            return str(tensor.device.type)
    return None


def refusals(then: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    """What is another here, so that code made there is not to be run."""
    if then.get("device") != here.get("device"):
        yield f"it was made on {then.get('device')}, the model is on {here['device']}"
        return
    named = _MACHINE_CODE | (_OF_GPUS if then.get("device") == "cuda" else {})
    for name, word in named.items():
        if name in then and then[name] != here.get(name):
            if name == "commit" and then.get("torch") != here.get("torch"):
                continue  # said already
            yield f"{word} {then[name]} when it was made, {_shown(here.get(name))} here"
    lacking = set(then.get("features", ())) - set(here.get("features", ()))
    if lacking:
        names = ", ".join(sorted(lacking)[:4])
        yield f"its code is for a CPU with {names}, which this one has not"
    old, new = _numbers(then.get("driver")), _numbers(here.get("driver"))
    if old and new and new < old:
        yield f"driver {then['driver']} when it was made, older here: {here['driver']}"


def speed_differences(
    then: Mapping[str, Any], here: Mapping[str, Any]
) -> Iterator[str]:
    """What is another here and changes only how fast the code is."""
    for name, word in _TOLD.items():
        if then.get(name) is not None and then[name] != here.get(name):
            yield f"{word} {then[name]} when it was made, {_shown(here.get(name))} here"


def driver() -> str | None:
    """Of the NVIDIA kernel module that is loaded."""
    with contextlib.suppress(OSError):
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", _DRIVER.read_text())
        return found[1] if found else None
    return None


def _cpuinfo(name: str) -> str | None:
    with contextlib.suppress(OSError):
        pattern = rf"^{name}\s*: (.*)$"
        found = re.search(pattern, _CPUINFO.read_text(), re.MULTILINE)
        return found[1].strip() if found else None
    return None


def _numbers(version: Any) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", str(version or ""))]


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
