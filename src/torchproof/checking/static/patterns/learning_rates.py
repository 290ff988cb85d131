"""A compiled optimizer step whose learning rate is a Python float that changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchproof.checking.static import compiled
from torchproof.checking.static.compiled import Compilation
from torchproof.checking.static.patterns.pattern import FilePattern, PatternMatch
from torchproof.checking.static.source import Definition, Source, walk


class FloatRate(FilePattern):
    """A scheduler changes the float that a compiled optimizer step reads."""

    code = "RC218"
    kind = "recompile"
    certain = False
    severity = "low"
    calls = 3

    def read(self, source: Source) -> Iterator[PatternMatch]:
        if "optim" not in source.text or "lr" not in source.text:
            return
        file = compiled.of(source)
        if file is None:
            return
        for site in file.sites:
            for node, optimizer in _steps(site.subject or site.node, file):
                if _has_float_rate(optimizer, file) and _is_scheduled(optimizer, file):
                    yield self._match(node)

    def _match(self, node: ast.expr) -> PatternMatch:
        return PatternMatch(
            node,
            "the optimizer step would compile twice: its learning rate is a Python"
            " float that changes",
            "a float is compiled in as a constant; when the scheduler changes it, the"
            " step is compiled again, with the rate as an input",
            "use a tensor: lr=torch.tensor(0.1), which schedulers update in place;"
            " or accept one recompile",
        )


def _steps(subject: ast.expr, file: Compilation) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The calls of `optimizer.step` in the compiled code, with the optimizer."""
    if isinstance(subject, ast.Attribute) and subject.attr == "step":
        yield subject, subject.value
        return
    function = file.bindings.meaning(subject)
    if not isinstance(function, Definition):
        function = next((s.function for s in file.sites if s.node is subject), None)
    for node in walk(function) if function is not None else ():
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr == "step":
            assert isinstance(node, ast.Call)
            yield node, called.value


def _has_float_rate(optimizer: ast.expr, file: Compilation) -> bool:
    constructor = file.bindings.meaning(optimizer)
    if not isinstance(constructor, ast.Call):
        return False
    if not (file.source.dotted(constructor.func) or "").startswith("torch.optim."):
        return False
    for keyword in constructor.keywords:
        if keyword.arg == "lr":
            return isinstance(keyword.value, ast.Constant)
    return False


def _is_scheduled(optimizer: ast.expr, file: Compilation) -> bool:
    """Whether a scheduler or an assignment changes the learning rate."""
    constructor = file.bindings.meaning(optimizer)
    for node in file.source.nodes:
        if isinstance(node, ast.Call) and node.args:
            scheduler = ".lr_scheduler." in (file.source.dotted(node.func) or "")
            if scheduler and file.bindings.meaning(node.args[0]) is constructor:
                return True
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Subscript) and compiled.literal(target.slice) == "lr":
            return True
    return False
