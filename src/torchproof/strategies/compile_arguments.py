"""Checks arguments that users give for torch.compile, before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchproof.records import UserError, one_line
from torchproof.strategies.strategy import MODES

_BACKENDS = frozenset({"inductor", "eager", "aot_eager", "cudagraphs"})


def check(arguments: Mapping[str, Any]) -> None:
    """Raises a `UserError` for what torch.compile would not take, or ignore."""
    mode, options = arguments.get("mode"), arguments.get("options")
    backend, dynamic = arguments.get("backend"), arguments.get("dynamic")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise wrong("dynamic", dynamic, "True, False or None")
    if mode is not None and not isinstance(mode, str):
        raise wrong("mode", mode, f"one of {', '.join(MODES)}")
    if options is not None and not is_keywords(options):
        raise wrong("options", options, "a dict with the names of options as keys")
    if backend is not None and not isinstance(backend, str) and not callable(backend):
        raise wrong("backend", backend, "the name of a backend or a function")
    if backend and mode:
        raise UserError("give a backend or a mode: modes are Inductor's")
    is_known = mode in (None, "", *MODES) and not options
    if is_known and (backend is None or callable(backend) or backend in _BACKENDS):
        return  # and torch's compiler is not loaded for it
    from torchproof.torch_private import switches

    try:
        switches.graph_compiler(arguments)
    except Exception as error:  # of torch, or of a backend that is not installed
        names = ", ".join(name for name, value in arguments.items() if value)
        told = one_line(f"{type(error).__name__}: {error}", 200)
        raise UserError(f"torch.compile does not take this {names}: {told}") from None


def wrong(name: str, value: Any, wanted: str) -> UserError:
    """An error that names an argument, its value and what it has to be."""
    return UserError(f"{name}={one_line(repr(value), 80)}: give {wanted}")


def is_keywords(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
