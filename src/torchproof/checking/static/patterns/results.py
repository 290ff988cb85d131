"""Misuse of the result of torch.compile: discarded, bypassed or saved with prefix."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchproof.checking.static import compiled
from torchproof.checking.static.compiled import Compilation, Compiled
from torchproof.checking.static.patterns.pattern import (
    FilePattern,
    PatternMatch,
    shorten,
)
from torchproof.checking.static.source import Class, Definition, Source, walk

# Methods besides forward that run a model; nn.Module has none of them.
_METHODS = {
    "generate",
    "encode",
    "decode",
    "predict",
    "sample",
    "embed",
    "infer",
    "encode_image",
    "encode_text",
    "forward_features",
    "transcribe",
    "rollout",
    "get_image_features",
    "get_text_features",
    "training_step",
    "act",
    "validation_step",
    "test_step",
    "predict_step",
    "log_prob",
    "translate",
}


class ThrownAway(FilePattern):
    """The program does not use the result of torch.compile."""

    code = "NC801"
    kind = "no_op"
    severity = "high"
    shown_by = ("NC801", "NC803")

    def read(self, source: Source) -> Iterator[PatternMatch]:
        file = compiled.of(source)
        for site in file.sites if file else ():
            statement = source.parents.get(site.node)
            if not isinstance(statement, ast.Expr) or site.subject is None:
                continue
            if _may_raise_on_purpose(statement, source):
                continue
            subject = source.text_of(site.subject)
            yield PatternMatch(
                site.node,
                f"`{shorten(source.text_of(site.node))}` has no effect: the program"
                " discards its result",
                f"torch.compile leaves {shorten(subject)} as it is and returns a"
                " compiled one, which nothing calls",
                f"use the result: {subject} = torch.compile({subject}), or compile a"
                f" module in place with {subject}.compile()",
            )


def _may_raise_on_purpose(node: ast.AST, source: Source) -> bool:
    """Whether a `with` or `try` around it may test that the call raises."""
    at: ast.AST | None = node
    while (at := source.parents.get(at)) is not None:  # type: ignore[arg-type]
        if isinstance(at, ast.With | ast.Try):
            return True
        if isinstance(at, Definition):
            return False
    return False


class OtherMethod(FilePattern):
    """A method other than forward is called on a compiled module."""

    code = "NC802"
    kind = "no_op"
    certain = False
    shown_by = ("NC802",)

    def read(self, source: Source) -> Iterator[PatternMatch]:
        file = compiled.of(source)
        if file is None:
            return
        for node in source.nodes:
            if not isinstance(node, ast.Call) or not isinstance(
                node.func, ast.Attribute
            ):
                continue
            site = file.of(node.func.value)
            if site is None or site.subject is None:
                continue
            if not _is_other(node.func.attr, site, file):
                continue
            text = shorten(source.text_of(node.func))
            name = node.func.attr
            yield PatternMatch(
                node,
                f"`{text}()` on the compiled module would run uncompiled",
                f"torch.compile(module) compiles forward only; {name} is the"
                " original's own method",
                f"if {name} calls forward, compile in place with model.compile();"
                f" otherwise compile the method itself: model.{name} ="
                f" torch.compile(model.{name})",
            )


def _is_other(name: str, site: Compiled, file: Compilation) -> bool:
    """Whether a method runs the model's own code but is not compiled."""
    cls = _class(site, file)
    if cls is None:
        return name in _METHODS and not _is_function(site, file)
    method = cls.methods.get(name)
    if method is None:
        return name in _METHODS
    plain = name.startswith("_") or name in ("forward", "train", "eval", "compile")
    runs = any("compile" in each for each in method.decorators)
    special = {"property", "staticmethod", "classmethod"} & set(method.decorators)
    return not plain and not runs and not special and _computes(method.node)


def _computes(function: Definition) -> bool:
    """Whether a method takes an argument besides self, as methods that run a model."""
    return len(function.args.args) > 1


def _class(site: Compiled, file: Compilation) -> Class | None:
    """The class of the compiled module, if the file shows it."""
    subject: ast.AST | None = site.subject
    for _ in range(4):
        if isinstance(subject, ast.Call):
            dotted = file.source.dotted(subject.func) or ""
            if isinstance(subject.func, ast.Attribute) and subject.func.attr in _SAME:
                subject = subject.func.value
                continue
            return file.source.classes.get(dotted)
        if not isinstance(subject, ast.Name | ast.Attribute):
            return None
        subject = file.bindings.meaning(subject)
    return None


# Methods of a module that return the module itself.
_SAME = {
    "to",
    "cuda",
    "cpu",
    "eval",
    "train",
    "half",
    "float",
    "bfloat16",
    "double",
    "requires_grad_",
}


def _is_function(site: Compiled, file: Compilation) -> bool:
    subject = site.subject
    if not isinstance(subject, ast.Name):
        return isinstance(subject, ast.Lambda | ast.Attribute) and not (
            isinstance(subject, ast.Attribute) and "model" in subject.attr
        )
    return isinstance(file.bindings.meaning(subject), Definition)


class OriginalCalled(FilePattern):
    """The program calls the original, and never uses the compiled result."""

    code = "NC803"
    kind = "no_op"
    certain = False
    shown_by = ("NC803", "NC801")

    def read(self, source: Source) -> Iterator[PatternMatch]:
        file = compiled.of(source)
        for site in file.sites if file else ():
            assert file is not None
            result, subject = file.name(site), site.subject
            if result is None or not isinstance(subject, ast.Name | ast.Attribute):
                continue
            names = source.dotted(result), source.dotted(subject)
            if None in names or names[0] == names[1] or _is_read(result, file):
                continue
            call = _first_call(subject, site, file)
            if call is not None:
                text = shorten(source.text_of(call))
                yield PatternMatch(
                    call,
                    f"`{text}` runs uncompiled: the compiled one is {names[0]}, and"
                    " nothing uses it",
                    f"torch.compile leaves {names[1]} as it is and returns a compiled"
                    " one",
                    f"call {names[0]} here, or assign the result to {names[1]}",
                )


def _first_call(
    subject: ast.Name | ast.Attribute, site: Compiled, file: Compilation
) -> ast.Call | None:
    """The first call of the original after compiling, or in another method."""
    is_attribute = isinstance(subject, ast.Attribute)
    scope = file.bindings.scope(site.node)
    if is_attribute:
        while not isinstance(scope, ast.ClassDef | ast.Module):
            scope = file.bindings.scope(scope)
    name = file.source.dotted(subject)
    for node in walk(scope):
        if isinstance(node, ast.Call) and file.source.dotted(node.func) == name:
            later = node.lineno > site.node.lineno
            if later or (is_attribute and file.bindings.scope(node) is not scope):
                return node
    return None


def _is_read(name: ast.expr, file: Compilation) -> bool:
    """Whether code in the file reads the name, or the file exports it."""
    last = name.id if isinstance(name, ast.Name) else getattr(name, "attr", "")
    if last in _exported(file.source):
        return True
    return any(
        isinstance(node, ast.Name | ast.Attribute)
        and (node.id if isinstance(node, ast.Name) else node.attr) == last
        and isinstance(node.ctx, ast.Load | ast.Del)
        for node in file.source.nodes
    )


def _exported(source: Source) -> set[str]:
    declared = {n for g in source.nodes if isinstance(g, ast.Global) for n in g.names}
    for node in source.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
            declared |= {compiled.literal(each) or "" for each in walk(node)}
    return declared


class PrefixedCheckpoint(FilePattern):
    """The program saves the state_dict of a compiled module, with `_orig_mod.` keys."""

    code = "CF112"

    def read(self, source: Source) -> Iterator[PatternMatch]:
        file = compiled.of(source)
        if file is None or "state_dict" not in source.text:
            return
        if "_orig_mod" in source.text:  # the program handles the prefix
            return
        for node in source.nodes:
            if (
                not isinstance(node, ast.Call)
                or source.dotted(node.func) != "torch.save"
            ):
                continue
            for inner in walk(node):
                if self._is_state(inner, file):
                    assert isinstance(inner, ast.Call)
                    yield self._match(inner, source)

    def _is_state(self, node: ast.AST, file: Compilation) -> bool:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        if node.func.attr != "state_dict":
            return False
        site = file.of(node.func.value)
        return site is not None and site.subject is not None

    def _match(self, node: ast.Call, source: Source) -> PatternMatch:
        text = shorten(source.text_of(node))
        return PatternMatch(
            node,
            f"`{text}` saves keys that begin with `_orig_mod.`",
            "a compiled module holds the original under the name _orig_mod, so a plain"
            " model finds none of its keys in what is saved",
            "compile in place with model.compile(), which keeps the names, or save the"
            " state_dict of the original model",
        )
