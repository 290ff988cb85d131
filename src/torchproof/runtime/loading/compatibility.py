"""Decides whether compiled code from another machine may run on this one.

Takes the machine that built a pack and this machine, returns the differences. Machine
code needs a matching CPU, cubins need a matching GPU, and both need the same torch:
such a difference refuses the pack. A difference that only affects speed is reported.
"""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torchproof.runtime.loading.pack_details import CachesDetails, Place
from torchproof.torch_private import process_groups, triton_version

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


def place_here(device: str) -> Place:
    """This machine and process; the facts of its GPU only if `device` is "cuda"."""
    place = Place(
        device=device,
        torch=str(torch.__version__),
        commit=torch.version.git_version,
        python=".".join(platform.python_version_tuple()[:2]),
        machine=platform.machine(),
        isa=torch.backends.cpu.get_cpu_capability(),
        cpu=_cpuinfo("model name") or _cpuinfo("CPU part"),
        features=tuple(
            sorted((_cpuinfo("flags") or _cpuinfo("Features") or "").split())
        ),
        threads=torch.get_num_threads(),
    )
    if device != "cuda" or not torch.cuda.is_available():
        return place
    major, minor = torch.cuda.get_device_capability()
    return replace(
        place,
        cuda=torch.version.cuda,
        triton=triton_version(),
        gpu=torch.cuda.get_device_name(),
        capability=f"{major}.{minor}",
        driver=driver(),
    )


def device_of(model: Any) -> str | None:
    """The device type of a model; None for a function or a module without tensors."""
    for tensors in ("parameters", "buffers"):
        for tensor in getattr(model, tensors, tuple)():
            return str(tensor.device.type)
    return None


def refusals(then: Place, here: Place) -> Iterator[str]:
    """Yields each difference that forbids running the code here."""
    if then.device != here.device:
        yield f"it was built for {then.device}, but the model is on {here.device}"
        return
    named = _CPU_FACTS | (_GPU_FACTS if then.device == "cuda" else {})
    if then.torch != here.torch:
        del named["commit"]  # the versions differ, too
    yield from _differences(then, here, named)
    if missing := set(then.features) - set(here.features):
        names = ", ".join(sorted(missing)[:4])
        yield f"its code needs a CPU with {names}, which this CPU lacks"
    old, new = _numbers(then.driver), _numbers(here.driver)
    if old and new and new < old:
        yield f"the driver here is {here.driver}, older than the build's {then.driver}"


def rank_refusals(details: CachesDetails) -> Iterator[str]:
    """Collectives are compiled for the groups of one number of ranks."""
    here = process_groups.world_size()
    if details.collectives and details.world_size != here:
        yield (
            f"its code has collectives of {details.world_size} ranks, and this process"
            f" is one of {here}"
        )


def speed_differences(then: Place, here: Place) -> Iterator[str]:
    """Yields each difference that affects only the speed of the code."""
    yield from _differences(then, here, _SPEED_FACTS)


def _differences(then: Place, here: Place, names: Mapping[str, str]) -> Iterator[str]:
    for name, word in names.items():
        old, new = getattr(then, name), getattr(here, name)
        if old is not None and old != new:
            yield f"{word} {old} at build, {'none' if new is None else new} here"


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


def _numbers(version: str | None) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version or "")]
