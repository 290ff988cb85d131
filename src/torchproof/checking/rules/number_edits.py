"""Edits that put a tensor in the place of a number in an attribute."""

from __future__ import annotations

import ast

from torchproof.checking.rules.rule import PROSE
from torchproof.checking.static import changes
from torchproof.checking.static.attribute_facts import AttributeFacts, FirstValue, Reset
from torchproof.records import Guard, Remedy, cells, shown_briefly


def as_tensor(
    name: str, facts: AttributeFacts, observed: str | None, *, in_module: bool
) -> Remedy | None:
    """A tensor where __init__ sets the number, written in place where others set it.

    `observed` is a value that a guard saw: only its type counts.
    """
    first = facts.first
    if first is None or not first.in_method or facts.python_use is not None:
        return None
    is_module = in_module or first.in_module
    if not changes.imports_torch(first.file) or (is_module and not first.after_init):
        return None
    if any(reset.target != f"self.{name}" for reset in facts.resets):
        return None  # the same attribute of an object that may be another one
    is_exact = first.kind is float or (first.kind is None and _is_float(observed))
    line = f"self.{name} = {_tensor(first.value, is_exact)}"
    if is_module:
        value = _tensor(first.value, is_exact)
        line = f'self.register_buffer("{name}", {value}, persistent=False)'
    fills = [_instead_of(r, f"{r.target}.fill_({r.value})") for r in facts.resets]
    edits = [_instead_of(first, line), *fills]
    if not all(edits):
        return None
    at = cells.place(shown_briefly(first.file), first.line)
    also = " and .fill_() where it is reset" if fills else ""
    titles = (
        f"write `{line}` instead of `{first.statement}` at {at}{also}",
        f"write `{line}` at {at}{also}",
        f"keep `self.{name}` in a tensor from {at} on{also}",
    )
    return Remedy(
        "edit",
        replacements=tuple(r for edit in edits if edit for r in edit.replacements),
        title=next((t for t in titles if len(t) <= PROSE), titles[-1]),
    )


def _instead_of(found: FirstValue | Reset, code: str) -> Remedy | None:
    """Code in place of a statement that has its lines for itself."""
    source = changes.source_of(found.file)
    node = changes.statement_at(source, found.line) if source else None
    if source is None or node is None or ast.unparse(node) != found.statement:
        return None
    return changes.edit("", source, {node: code})


def before_first_call(guard: Guard, facts: AttributeFacts) -> str | None:
    """The statement that makes the number of an object a tensor."""
    if guard.source.startswith("self.") or not facts.is_plain:
        return None
    return f"{guard.source} = {_tensor(guard.source, _is_float(guard.expected))}"


def _tensor(value: str, is_float: bool) -> str:
    return f"torch.tensor({value}{', dtype=torch.float64' if is_float else ''})"


def _is_float(text: str | None) -> bool:
    """Whether the text of a number is that of a float."""
    return any(mark in (text or "") for mark in (".", "e", "inf", "nan"))
