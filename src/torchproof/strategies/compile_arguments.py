"""Checks the user's arguments for torch.compile before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchproof.records import Keywords, UserError, one_line
from torchproof.strategies.strategy import MODES

_BACKENDS = frozenset({"inductor", "eager", "aot_eager", "cudagraphs"})


def check(arguments: Keywords) -> None:
    """Raises a `UserError` for arguments that torch.compile would reject or ignore."""
    mode = arguments.get("mode")
    options = arguments.get("options")
    backend = arguments.get("backend")
    dynamic = arguments.get("dynamic")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise invalid_argument("dynamic", dynamic, "True, False or None")
    if mode is not None and not isinstance(mode, str):
        raise invalid_argument("mode", mode, f"one of {', '.join(MODES)}")
    if options is not None and not is_keywords(options):
        raise invalid_argument(
            "options", options, "a dict with the names of options as keys"
        )
    if backend is not None and not isinstance(backend, str) and not callable(backend):
        raise invalid_argument(
            "backend", backend, "the name of a backend or a function"
        )
    is_known = mode in (None, "", *MODES) and not options
    if is_known and (backend is None or callable(backend) or backend in _BACKENDS):
        return  # without loading torch's compiler
    from torchproof.torch_private import switches

    try:
        switches.graph_compiler(arguments)
    except Exception as error:  # from torch, or a backend that is not installed
        names = ", ".join(name for name, value in arguments.items() if value)
        why = one_line(f"{type(error).__name__}: {error}", 200)
        raise UserError(f"torch.compile does not accept {names}: {why}") from None


def invalid_argument(name: str, value: Any, expected: str) -> UserError:
    """An error that names an argument, its value and what is expected."""
    return UserError(f"{name}={one_line(repr(value), 80)}: give {expected}")


def is_keywords(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
