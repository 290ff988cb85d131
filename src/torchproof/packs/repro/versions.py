"""The machine and the versions of a repro, in the format of PyTorch's bug reports."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

_LIBRARIES: tuple[str, ...] = (
    "torch",
    "torchvision",
    "torchaudio",
    "triton",
    "pytorch-triton",
    "torchao",
    "numpy",
    "transformers",
)
_DRIVER = Path("/proc/driver/nvidia/version")
_PROCESSOR = Path("/proc/cpuinfo")
_TIMEOUT_S = 10.0  # for a program that prints its version


def machine() -> dict[str, Any]:
    """Returns what the operating system reports; None for what is unknown."""
    return {
        "os": _os(),
        "libc": "-".join(filter(None, platform.libc_ver())) or None,
        "compiler": _first_line(os.environ.get("CXX") or "g++", "--version"),
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "driver": _driver(),
        "libraries": dict(_libraries()),
    }


def text(facts: Mapping[str, Any]) -> str:
    """Formats the facts under the headings of torch.utils.collect_env."""
    rows = [
        ("PyTorch version", facts.get("torch")),
        ("CUDA used to build PyTorch", facts.get("cuda")),
        ("OS", facts.get("os")),
        ("GCC version", facts.get("compiler")),
        ("Libc version", facts.get("libc")),
        ("Python version", facts.get("python")),
        ("Python platform", facts.get("platform")),
        ("Device of the run", facts.get("device")),
        ("GPU models and configuration", facts.get("gpu")),
        ("Nvidia driver version", facts.get("driver")),
        ("Triton version", facts.get("triton")),
        ("CPU", facts.get("cpu")),
        ("CPU cores, threads of torch", _pair(facts)),
    ]
    lines = [f"{name}: {_shown(value)}" for name, value in rows]
    lines += _section("Versions of relevant libraries", facts.get("libraries"), "==")
    lines += _section("Variables", facts.get("variables"), "=")
    for module, values in (facts.get("configs") or {}).items():
        lines += _section(f"Changed in {module}", values, " = ")
    return "\n".join(lines) + "\n"


def brief(facts: Mapping[str, Any]) -> str:
    """Returns one line with the versions that a failure is most likely to depend on."""
    names = {"torch": "torch", "Python": "python"}
    parts = [f"{name} {_shown(facts.get(key))}" for name, key in names.items()]
    if facts.get("cuda"):
        parts.append(f"CUDA {facts['cuda']}")
    if facts.get("triton"):
        parts.append(f"triton {facts['triton']}")
    if facts.get("driver"):
        parts.append(f"driver {facts['driver']}")
    parts.append(facts.get("gpu") or facts.get("cpu") or facts.get("machine") or "-")
    return ", ".join(map(str, parts))


def _shown(value: Any) -> str:
    return "-" if value in (None, "") else str(value)


def _pair(facts: Mapping[str, Any]) -> str:
    return f"{_shown(facts.get('cores'))}, {_shown(facts.get('threads'))}"


def _section(heading: str, values: Any, between: str) -> list[str]:
    if not values:
        return []
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in sorted(values.items())
    }
    rows = [f"{name}{between}{value}" for name, value in texts.items()]
    return ["", f"{heading}:", *rows]


def _os() -> str:
    with contextlib.suppress(OSError):
        name = platform.freedesktop_os_release().get("PRETTY_NAME")
        if name:
            return f"{name} ({platform.machine()})"
    return f"{platform.system()} {platform.release()} ({platform.machine()})"


def _processor() -> str | None:
    with contextlib.suppress(OSError):
        for line in _PROCESSOR.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    # /proc/cpuinfo has a model name only on x86.
    output = _output("lscpu") or ""
    for line in output.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Model name" and value.strip() not in ("", "-"):
            return value.strip()
    return None


def _driver() -> str | None:
    """Returns the version of NVIDIA's driver, from the kernel or from nvidia-smi."""
    with contextlib.suppress(OSError):
        # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ..."
        for word in _DRIVER.read_text().split():
            if word[0].isdigit() and word.count(".") in (1, 2):
                return word
    flags = ("--query-gpu=driver_version", "--format=csv,noheader")
    return _first_line("nvidia-smi", *flags)


def _libraries() -> Iterator[tuple[str, str]]:
    for name in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def _first_line(*command: str) -> str | None:
    output = _output(*command)
    return output.splitlines()[0].strip() if output else None


def _output(*command: str) -> str | None:
    """Returns what a program prints; None if it is not installed or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None if result.returncode == 0 else None
