"""Describes where a target ran: versions, device, threads, environment variables."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from torchproof.records import repository_of, shapes

_VARIABLES = ("TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TRITON_", "OMP_", "CUDA_")


class Run(Protocol):
    """What a run says about itself, besides its process."""

    @property
    def device(self) -> str | None: ...

    @property
    def size(self) -> str | None: ...

    @property
    def train(self) -> bool: ...

    @property
    def source_file(self) -> Path | None: ...


def describe(run: Run) -> shapes.Environment:
    """The facts about this process; `torch` is None if it is not loaded."""
    commit = repository_of(run.source_file)
    facts: shapes.Environment = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "torch": None,
        "device": run.device or "cpu",
        "size": run.size,
        "train": run.train,
        "commit": commit["commit"],
        "dirty": commit["dirty"],
        "variables": {k: v for k, v in os.environ.items() if k.startswith(_VARIABLES)},
    }
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda"):
        facts["torch"] = str(torch.__version__)
        facts["cuda"] = torch.version.cuda
        facts["threads"] = torch.get_num_threads()
        if torch.cuda.is_initialized():
            facts["device"] = "cuda"
            facts["gpu"] = torch.cuda.get_device_name()
            facts["triton"] = triton_version()
            facts["gpus"] = tuple(
                _gpu(torch, n) for n in range(torch.cuda.device_count())
            )
            facts["cudnn"] = torch.backends.cudnn.version()
            facts["driver"] = _driver()
    return facts


def _gpu(torch: Any, number: int) -> shapes.Gpu:
    properties = torch.cuda.get_device_properties(number)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
    }


@functools.cache
def _driver() -> str | None:
    """The version of NVIDIA's driver, as its kernel module states it."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    version = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", text)
    return version[0] if version else None


@functools.cache
def triton_version() -> str | None:
    """The version of the installed package, without importing it."""
    for name in ("triton", "pytorch-triton"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None
