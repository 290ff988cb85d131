"""The machine and the versions of a repro, as PyTorch's bug reports state them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from torchproof.packs.repro.candidate import RecordedFacts
from torchproof.process import Child, spawn
from torchproof.records import shapes

_LIMIT_S = 120.0  # for collect_env, which asks pip and several programs


class CollectEnv:
    """`torch.utils.collect_env` in a process of its own, while others do their work."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "collect_env.txt"
        with self._output.open("wb") as output:
            module = ("-m", "torch.utils.collect_env")
            self._child: Child = spawn("-P", "-W", "ignore", *module, output=output)

    def __enter__(self) -> CollectEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()

    def text(self) -> str:
        """Waits for its report; empty if it fails."""
        try:
            code: int | None = self._child.wait(_LIMIT_S)
        except TimeoutError:
            code = None
        text = self._output.read_text(errors="replace")
        return text.partition("...\n")[2] if code == 0 else ""


def collect_facts(
    environment: shapes.Environment, recorded: RecordedFacts, report: str
) -> RecordedFacts:
    """Merges facts of the run, the recording and collect_env's report."""
    driver, cpu = (
        re.search(rf"^{heading}: +(.+)$", report, re.MULTILINE)
        for heading in ("Nvidia driver version", "Model name")
    )
    return {
        **environment,
        **recorded,
        "driver": driver[1] if driver and "Could not" not in driver[1] else None,
        "cpu": cpu[1] if cpu else None,
    }


def text(facts: RecordedFacts, report: str) -> str:
    """Returns collect_env's report, variables and changed settings of the compiler."""
    lines = [report.rstrip("\n") or f"PyTorch version: {brief(facts)}"]
    lines.append(f"Device of the run: {_shown(facts.get('device'))}")
    lines += _section("Variables", facts.get("variables"), "=")
    for module, values in (facts.get("configs") or {}).items():
        lines += _section(f"Changed in {module}", values, " = ")
    return "\n".join(lines) + "\n"


def brief(facts: RecordedFacts) -> str:
    """Returns one line with the versions that a failure is most likely to depend on."""
    names = {"torch": "torch", "Python": "python"}
    parts = [f"{name} {_shown(facts.get(key))}" for name, key in names.items()]
    more = {"CUDA": "cuda", "triton": "triton", "driver": "driver"}
    parts += [f"{name} {v}" for name, key in more.items() if (v := facts.get(key))]
    parts.append(facts.get("gpu") or facts.get("cpu") or facts.get("machine") or "-")
    return ", ".join(map(str, parts))


def _shown(value: Any) -> str:
    return "-" if value in (None, "") else str(value)


def _section(heading: str, values: Any, between: str) -> list[str]:
    if not values:
        return []
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in sorted(values.items())
    }
    return [
        "",
        f"{heading}:",
        *(f"{name}{between}{v}" for name, v in texts.items()),
    ]
