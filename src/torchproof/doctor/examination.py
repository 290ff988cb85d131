"""All checks in the order in which they are printed.

What needs torch runs in a child process, because importing a broken torch can raise,
crash or hang. It runs while this process does the other checks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

from torchproof import process
from torchproof.doctor import (
    cache_checks,
    cpp_compiler,
    package_checks,
    system_checks,
    torch_checks,
)
from torchproof.doctor.torch_facts import Facts
from torchproof.records import MachineCheck

_STAGE_S = 120.0  # a cold disk takes a minute to import torch


def examine(
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[MachineCheck, ...]:
    """Tries everything once; a failure becomes a check, not an exception."""
    with (
        tempfile.TemporaryFile() as output,
        process.spawn("-m", "torchproof.doctor.torch_facts", output=output) as child,
    ):
        progress("trying limits and permissions")
        system = [*system_checks.checks(child.pid)]
        progress("reading the caches")
        caches = [*cache_checks.checks()]
        progress("trying the C++ compiler")
        compiler = [*cpp_compiler.checks()]
        progress("importing torch")
        facts = cast(Facts, dict(_stages(child, output, progress)))
    return (
        *package_checks.versions(),
        *torch_checks.checks(facts),
        *compiler,
        *torch_checks.gpu_checks(facts),
        *caches,
        *torch_checks.fork_checks(facts),
        *system,
        *package_checks.checks(facts.get("packages", {}).get("errors", {})),
    )


def _stages(
    child: process.Child, output: IO[bytes], progress: Callable[[str], None]
) -> Iterator[tuple[str, Any]]:
    """Each stage of the child with its facts; `ended` if it ended or hung early."""
    doing = "start"
    while True:
        try:
            message = child.receive(_STAGE_S)
        except process.Ended as error:
            yield "ended", {"stage": doing, "how": str(error), "said": _last(output)}
            return
        except (TimeoutError, process.Garbled):
            how = f"did not answer within {_STAGE_S:.0f} s"
            yield "ended", {"stage": doing, "how": how, "said": _last(output)}
            return
        if "begins" in message:
            doing = message["begins"]
            progress(f"trying {doing}")
        elif "stage" in message:
            yield message["stage"], message["facts"]
        else:
            return


def _last(output: IO[bytes]) -> str:
    """The last line that the child printed."""
    output.seek(0, 2)
    output.seek(max(0, output.tell() - 4000))
    lines = output.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
