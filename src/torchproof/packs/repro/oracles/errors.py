"""Recognises errors of compilation or of the first compiled call where eager runs."""

from __future__ import annotations

import re

from torchproof.packs.repro.oracles.error_text import (
    innermost,
    is_same_message,
    reason_of,
)
from torchproof.packs.repro.oracles.prelude import NONE, OTHER, SAME, collect_trace


def run_oracle(program, expected):
    """Expects the `error` class, its `message`, torch's `id` or None, and `names`.

    `backend` is the simplest backend that shows the error, or None.
    """
    defaults = {"backend": expected["backend"]} if expected.get("backend") else {}
    with collect_trace() as trace:
        error = program.compiled_error(**defaults)
    if error is None:
        return NONE, "it compiles and runs without an error"
    for name, text in errors_in(error, trace):
        if is_same_error(name, text, expected):
            return SAME, f"{name}: {innermost(text)}"
    in_eager = program.eager_error()
    if in_eager is not None:
        return OTHER, f"eager fails: {in_eager}"
    return OTHER, f"another error, {type(error).__name__}: {innermost(str(error))}"


def errors_in(error, trace):
    """Yields class and message of the error, of its causes, and of logged errors."""
    visited = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield type(error).__name__, str(error)
        error = error.__cause__ or error.__context__
    for _, metrics in trace.named("compilation_metrics"):
        if metrics.get("fail_type"):
            yield metrics["fail_type"], str(metrics.get("fail_reason") or "")


def is_same_error(name, message, expected):
    if name.rsplit(".", 1)[-1] != expected["error"]:
        return False
    message = re.sub(rf"^(?:[\w.]+\.)?{name}: ", "", message)
    if expected.get("id"):
        reason = reason_of(message)
        if reason["id"] != expected["id"] or reason["names"] != expected["names"]:
            return False
    return is_same_message(message, expected["message"])
