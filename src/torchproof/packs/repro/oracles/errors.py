"""Errors that compiling raises, or the first compiled call, where eager runs."""

from __future__ import annotations

import re

from torchproof.packs.repro.oracles.error_text import (
    innermost,
    is_same_message,
    reason_of,
)
from torchproof.packs.repro.oracles.prelude import (
    NONE,
    OTHER,
    SAME,
    failure_in_eager,
    run_compiled,
    traced,
)


def run_oracle(make, settings, expected, before_call=None):
    """Expected: the `error` class, its `message`, torch's `id` or None, and `names`.

    `backend` is the one that is enough to see it, or None.
    """
    enough = {"backend": expected["backend"]} if expected.get("backend") else {}
    with traced() as trace:
        error = run_compiled(make, settings, before_call, **enough)
    if error is None:
        return NONE, "it compiles and runs without an error"
    own = failure_in_eager(make, settings, before_call)
    if own is not None:
        return OTHER, f"it fails in eager: {own}"
    for name, text in errors_in(error, trace):
        if is_same_error(name, text, expected):
            return SAME, f"{name}: {innermost(text)}"
    return OTHER, f"another error, {type(error).__name__}: {innermost(str(error))}"


def errors_in(error, trace):
    """Class and message of what was raised, of its causes, and of what torch noted."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
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
