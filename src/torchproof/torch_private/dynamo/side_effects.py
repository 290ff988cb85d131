"""What Dynamo is tracing, and what the traced code has changed so far."""

from __future__ import annotations

import importlib


def changed_objects() -> set[int]:
    """The ids of objects that the traced code has changed, and that exist unchanged.

    Dynamo applies changes when the compiled code has run: while it traces, an object is
    as it was before the call.
    """
    symbolic = importlib.import_module("torch._dynamo.symbolic_convert")
    try:
        effects = symbolic.InstructionTranslator.current_tx().output.side_effects
    except AttributeError:  # nothing is being traced
        return set()
    return {
        address
        for address, variable in effects.id_to_variable.items()
        if effects.is_modified(variable)
    }


def is_compiling_a_frame() -> bool:
    """Whether this thread compiles something: traces it, or makes guards for it."""
    return importlib.import_module("torch._guards").CompileContext.try_get() is not None
