"""Decides whether compiled code from another machine may run on this one.

Takes the facts of the machine that built a pack and of this machine, returns the
differences. Machine code needs a matching CPU, cubins need a matching GPU, and both
need the same torch: such a difference refuses the pack. A difference that only affects
speed is reported.
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
_CPU_FACTS = {
    "torch": "torch",
    "commit": "torch of commit",
    "python": "Python",
    "machine": "machine",
    "isa": "CPU capability",
}
_GPU_FACTS = {
    "cuda": "CUDA",
    "triton": "Triton",
    "gpu": "GPU",
    "capability": "compute capability",
}
_SPEED_FACTS = {"cpu": "CPU", "threads": "threads", "hip": "HIP"}


def environment_facts(device: str) -> Facts:
    """The facts of this process; those of the GPU only if `device` is "cuda"."""
    facts: Facts = {
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
        facts |= {
            "cuda": torch.version.cuda,
            "triton": triton_version(),
            "gpu": torch.cuda.get_device_name(),
            "capability": f"{major}.{minor}",
            "driver": driver(),
        }
    return facts


def device_of(model: Any) -> str | None:
    """The device type of a model; None for a function or a module without tensors."""
    for tensors in ("parameters", "buffers"):
        for tensor in getattr(model, tensors, tuple)():
            return str(tensor.device.type)
    return None


def refusals(then: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    """Yields each difference that forbids running the code here."""
    if then.get("device") != here.get("device"):
        yield (
            f"it was built for {then.get('device')}, but the model is on"
            f" {here['device']}"
        )
        return
    named = _CPU_FACTS | (_GPU_FACTS if then.get("device") == "cuda" else {})
    for name, word in named.items():
        if name in then and then[name] != here.get(name):
            if name == "commit" and then.get("torch") != here.get("torch"):
                continue  # the versions differ, too
            yield _difference(word, then[name], here.get(name))
    missing = set(then.get("features", ())) - set(here.get("features", ()))
    if missing:
        names = ", ".join(sorted(missing)[:4])
        yield f"its code needs a CPU with {names}, which this CPU lacks"
    old, new = _numbers(then.get("driver")), _numbers(here.get("driver"))
    if old and new and new < old:
        yield (
            f"the driver here is {here['driver']}, older than the build's"
            f" {then['driver']}"
        )


def speed_differences(
    then: Mapping[str, Any], here: Mapping[str, Any]
) -> Iterator[str]:
    """Yields each difference that affects only the speed of the code."""
    for name, word in _SPEED_FACTS.items():
        if then.get(name) is not None and then[name] != here.get(name):
            yield _difference(word, then[name], here.get(name))


def driver() -> str | None:
    """The version of the loaded NVIDIA kernel module."""
    with contextlib.suppress(OSError):
        match = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", _DRIVER.read_text())
        return match[1] if match else None
    return None


def _cpuinfo(name: str) -> str | None:
    with contextlib.suppress(OSError):
        pattern = rf"^{name}\s*: (.*)$"
        match = re.search(pattern, _CPUINFO.read_text(), re.MULTILINE)
        return match[1].strip() if match else None
    return None


def _numbers(version: Any) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", str(version or ""))]


def _difference(word: str, then: Any, here: Any) -> str:
    return f"{word} {then} at build, {'none' if here is None else here} here"
