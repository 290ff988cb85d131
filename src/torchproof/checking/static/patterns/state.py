"""State that compiled code changes: counters, growing lists, stored outputs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchproof.checking.static.flow import Flow
from torchproof.checking.static.patterns.pattern import Pattern, PatternMatch, shorten
from torchproof.checking.static.source import walk

_COUNTERS = ast.Add | ast.Sub | ast.Mult


class Counter(Pattern):
    """`self.calls += 1`: an integer attribute that changes in each call."""

    code = "RC213"
    kind = "recompile"
    nodes = (ast.AugAssign, ast.Assign)
    shown_by = ("RC213", "RC290", "RC215", "RC299")
    calls = 3

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.AugAssign | ast.Assign)
        name = _counted(node, at)
        if name is None or not _is_integer(name, at):
            return
        text = shorten(at.text(node))
        yield PatternMatch(
            node,
            f"`{text}` would recompile {at.function.name} in each call",
            f"compiled code holds for one value of `self.{name}`, and each call changes"
            " it",
            f"count in a tensor (self.register_buffer({name!r},"
            " torch.zeros((), dtype=torch.long)) and add_(1)), or count outside the"
            " compiled function",
        )


def _counted(node: ast.AugAssign | ast.Assign, at: Flow) -> str | None:
    """The attribute of `self` that a statement changes by an integer."""
    if isinstance(node, ast.AugAssign):
        target, step, operation = node.target, node.value, node.op
    elif len(node.targets) == 1 and isinstance(node.value, ast.BinOp):
        target, step, operation = node.targets[0], node.value.right, node.value.op  # type: ignore[assignment]
        if at.dotted(node.value.left) != at.dotted(target):
            return None
    else:
        return None
    dotted = at.dotted(target) or ""
    whole = isinstance(step, ast.Constant) and type(step.value) is int
    on_self = dotted.startswith("self.") and dotted.count(".") == 1
    return (
        dotted[5:] if on_self and whole and isinstance(operation, _COUNTERS) else None
    )


def _is_integer(name: str, at: Flow) -> bool:
    """Whether the class assigns only integers to the attribute."""
    owner = at.function.owner
    values = at.program.assigned(owner, name) if owner else []
    first = [v for v in values if not isinstance(v, ast.BinOp)]
    return bool(first) and all(
        isinstance(v, ast.Constant) and type(v.value) is int for v in first
    )


class GlobalCounter(Pattern):
    """`global CALLS; CALLS += 1`."""

    code = "RC214"
    kind = "recompile"
    nodes = (ast.AugAssign,)
    shown_by = ("RC214", "RC290", "RC215", "RC299")
    calls = 3

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.AugAssign)
        target, step = node.target, node.value
        if not isinstance(target, ast.Name) or not isinstance(step, ast.Constant):
            return
        if type(step.value) is not int or target.id not in at.source.globals:
            return
        if not any(
            isinstance(n, ast.Global) and target.id in n.names
            for n in walk(at.function.node)
        ):
            return
        yield PatternMatch(
            node,
            f"`{shorten(at.text(node))}` would compile {at.function.name} again in each"
            " call",
            f"before torch 2.14 compiled code holds for one value of `{target.id}`, and"
            " each call changes it",
            "count outside the compiled function, or in a tensor",
        )


class GrowingList(Pattern):
    """`self.outputs.append(y)`: a list that grows in each call."""

    code = "RC212"
    kind = "recompile"
    nodes = (ast.Call,)
    shown_by = ("RC212", "RC213", "RC214", "RC290", "RC215", "RC299")
    calls = 3

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Call)
        called = node.func
        if not isinstance(called, ast.Attribute) or called.attr != "append":
            return
        name = at.dotted(called.value) or ""
        if not _is_kept_list(name, at) or _is_emptied(name, at):
            return
        yield PatternMatch(
            node,
            f"`{shorten(at.text(node))}` would compile {at.function.name} again in each"
            " call",
            f"compiled code holds for one length of `{name}`, and each call makes it"
            " longer",
            "return the value and append it outside the compiled function",
        )


def _is_kept_list(name: str, at: Flow) -> bool:
    if name.startswith("self.") and name.count(".") == 1:
        owner = at.function.owner
        values = at.program.assigned(owner, name[5:]) if owner else []
        return bool(values) and all(
            isinstance(v, ast.List) and not v.elts for v in values
        )
    if not isinstance(at.source.globals.get(name), ast.List):
        return False
    local = {n.id for n in walk(at.function.node) if _is_store(n)}  # type: ignore[attr-defined]
    return name not in local


def _is_store(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_emptied(name: str, at: Flow) -> bool:
    """Whether the same function also resets or shortens the list."""
    for node in walk(at.function.node):
        if isinstance(node, ast.Assign) and any(
            at.dotted(target) == name for target in node.targets
        ):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            emptied = node.func.attr in ("clear", "pop", "remove")
            if emptied and at.dotted(node.func.value) == name:
                return True
    return False


class KeptOutput(Pattern):
    """`self.last = y` in a forward: with CUDA graphs the next call overwrites it."""

    code = "CG304"
    kind = "cudagraph_lifetime"
    severity = "low"
    nodes = (ast.Assign,)
    shown_by = ("CG301", "CG302", "CG303", "CG304")
    calls = 2

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Assign)
        if at.function.node.name != "forward" or not at.kind(node.value).is_tensor:
            return
        if _is_copied(node.value):
            return
        for target in node.targets:
            name = at.dotted(target) or ""
            if not (name.startswith("self.") and name.count(".") == 1):
                continue
            yield PatternMatch(
                node,
                f"`{shorten(at.text(node))}` would keep an output of"
                f" {at.function.name} after the call",
                "with CUDA graphs (mode='reduce-overhead') the next call overwrites the"
                " memory of what the last one gave",
                f"keep a copy, made outside the compiled function: {name}.clone(); or"
                " return it",
            )


def _is_copied(value: ast.expr) -> bool:
    """Whether a value is copied out of the graph's memory; clone() inside is not."""
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr in (
        "cpu",
        "item",
        "tolist",
    )


class ListArgument(Pattern):
    """A list of tensors as an argument: each new length recompiles."""

    code = "RC212"
    kind = "recompile"
    severity = "low"
    nodes = (ast.For, ast.ListComp, ast.GeneratorExp, ast.Call)
    shown_by = ("RC212", "RC290")
    calls = 2
    joins = ("torch.stack", "torch.cat", "torch.concat", "torch.vstack", "torch.hstack")

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        if at.function.node.name != "forward":
            return
        for each in self._used(node, at):
            is_list = isinstance(each, ast.Name) and each.id in _list_parameters(at)
            if is_list and at.text(each) not in at.reported:
                at.reported.add(at.text(each))
                yield PatternMatch(
                    each,
                    f"{at.function.name} would recompile for each length of the list"
                    f" `{at.text(each)}`",
                    "compiled code holds for one length of a Python list: a guard"
                    " counts its items",
                    "build one tensor (torch.stack or a padded batch) before the"
                    " compiled call and pass it",
                )

    def _used(self, node: ast.AST, at: Flow) -> list[ast.expr]:
        if isinstance(node, ast.For):
            return [node.iter]
        if isinstance(node, ast.Call):
            joined = at.dotted(node.func) in self.joins and bool(node.args)
            return [node.args[0]] if joined else []
        assert isinstance(node, ast.ListComp | ast.GeneratorExp)
        return [each.iter for each in node.generators]


def _list_parameters(at: Flow) -> set[str]:
    """The parameters that are annotated as lists of tensors."""
    parameters = set()
    for parameter in at.function.parameters:
        if parameter.annotation is None:
            continue
        text = ast.unparse(parameter.annotation).replace(" ", "")
        text = text.removesuffix("|None").removeprefix("Optional[").lower()
        if text.startswith(("list[", "sequence[", "typing.list[")) and "tensor" in text:
            parameters.add(parameter.arg)
    return parameters
