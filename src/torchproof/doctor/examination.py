"""All checks in the order in which they are printed.

What needs torch runs in a child process, because importing a broken torch can raise,
crash or hang. It runs while this process does the other checks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import IO

from torchproof import process
from torchproof.doctor import (
    cpp_compiler,
    package_checks,
    system_checks,
    torch_checks,
)
from torchproof.doctor.table import failed
from torchproof.records import MachineCheck

GROUPS = (
    *("versions", "torch", "C++ compiler", "GPU", "caches", "permissions"),
    *("environment", "packages"),
)
_ROW_S = 120.0  # a cold disk takes a minute to import torch


def examine(
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[MachineCheck, ...]:
    """Tries everything once; a failure becomes a check, not an exception."""
    with (
        tempfile.TemporaryFile() as output,
        process.spawn("-m", "torchproof.doctor.torch_checks", output=output) as child,
    ):
        progress("trying limits and permissions")
        system = [*system_checks.checks(child.pid)]
        progress("reading the caches")
        system += system_checks.cache_checks()
        progress("trying the C++ compiler")
        system += cpp_compiler.checks()
        progress("importing torch")
        checks = [*package_checks.versions(), *_of_child(child, output, progress)]
    return tuple(
        sorted([*checks, *system], key=lambda check: GROUPS.index(check.group))
    )


def _of_child(
    child: process.Child, output: IO[bytes], progress: Callable[[str], None]
) -> Iterator[MachineCheck]:
    """The child's checks; if it ends early, the rows that it did not reach failed."""
    left = [*torch_checks.ROWS]
    errors: dict[str, str] = {}
    try:
        while True:
            message = child.receive(_ROW_S)
            if "begins" in message:
                while left[0] != message["begins"]:
                    left.pop(0)
                progress(f"trying {message['begins']}")
            elif "checks" in message:
                left.pop(0)
                yield from (MachineCheck(**check) for check in message["checks"])
            else:
                errors = message["errors"]
                break
    except process.Ended as error:
        yield from _failed(left, str(error), output)
    except (TimeoutError, process.Garbled):
        yield from _failed(left, f"did not answer within {_ROW_S:.0f} s", output)
    yield from package_checks.checks(errors)


def _failed(keys: list[str], how: str, output: IO[bytes]) -> Iterator[MachineCheck]:
    said = process.last_line(output)
    for key in keys:
        yield failed(key, ": ".join(filter(None, (f"the process {how}", said))))
        if key == "torch":
            return  # the line about torch says it
