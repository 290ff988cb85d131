"""Edits that put a tensor in the place of a number in an attribute."""

from __future__ import annotations

from torchproof.checking.rules.line_edits import imports_torch, instead_of
from torchproof.checking.rules.rule import PROSE
from torchproof.checking.static.attribute_facts import AttributeFacts
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
    if not imports_torch(first.file) or (is_module and not first.after_init):
        return None
    is_exact = first.kind is float or (first.kind is None and _is_float(observed))
    line = f"self.{name} = {_tensor(first.value, is_exact)}"
    if is_module:
        value = _tensor(first.value, is_exact)
        line = f'self.register_buffer("{name}", {value}, persistent=False)'
    edits = [instead_of(first.file, first.line, first.statement, line)]
    for reset in facts.resets:
        fill = f"{reset.target}.fill_({reset.value})"
        edits.append(instead_of(reset.file, reset.line, reset.statement, fill))
    if not all(edits):
        return None
    at = cells.place(shown_briefly(first.file), first.line)
    fills = " and .fill_() where it is reset" if facts.resets else ""
    titles = (
        f"write `{line}` instead of `{first.statement}` at {at}{fills}",
        f"write `{line}` at {at}{fills}",
        f"keep `self.{name}` in a tensor from {at} on{fills}",
    )
    return Remedy(
        "edit",
        replacements=tuple(edit for edit in edits if edit is not None),
        title=next((t for t in titles if len(t) <= PROSE), titles[-1]),
    )


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
