"""Finds each torch.compile of a file, its arguments, and the calls of its result."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchproof.checking.static import bindings
from torchproof.checking.static.program import COMPILE
from torchproof.checking.static.source import Definition, Source, walk
from torchproof.records import CompileSite

ARGUMENTS = ("backend", "mode", "dynamic", "fullgraph", "options")
WITH_GRAPHS = ("reduce-overhead", "max-autotune")
DDP = ("DistributedDataParallel", "DDP")
FSDP = ("FullyShardedDataParallel", "FSDP")
SHARD = ("fully_shard",)


@dataclass(frozen=True, eq=False)
class Compiled:
    """One use of torch.compile: the call or decorator, and its arguments."""

    node: ast.expr
    source: Source
    subject: ast.expr | None = None
    function: Definition | None = None  # the function that it decorates

    @property
    def arguments(self) -> Mapping[str, ast.expr]:
        keywords = self.node.keywords if isinstance(self.node, ast.Call) else []
        return {k.arg: k.value for k in keywords if k.arg}

    @property
    def mode(self) -> str | None:
        return literal(self.arguments.get("mode"))

    @property
    def backend(self) -> str | None:
        """The name of the backend; "" if the argument is not a string."""
        backend = self.arguments.get("backend")
        return "inductor" if backend is None else literal(backend) or ""

    @property
    def has_graphs(self) -> bool:
        """Whether the written arguments turn CUDA graphs on."""
        if self.backend == "cudagraphs":
            return True
        if self.backend != "inductor":
            return False
        options = self.arguments.get("options")
        if isinstance(options, ast.Dict):
            for key, value in zip(options.keys, options.values, strict=True):
                if literal(key) == "triton.cudagraphs":
                    return isinstance(value, ast.Constant) and value.value is True
        return self.mode in WITH_GRAPHS


class Compilation:
    """The torch.compile calls of a file, and the names bound to their results."""

    def __init__(self, source: Source, names: tuple[str, ...] = COMPILE) -> None:
        self.source, self._names = source, names
        self.sites = list(self._sites()) if "compile" in source.text else []
        self._by_node = {site.node: site for site in self.sites}
        self._by_function = {s.function: s for s in self.sites if s.function}

    @functools.cached_property
    def bindings(self) -> bindings.Bindings:
        return bindings.of(self.source)

    @property
    def has_graphs(self) -> bool:
        return any(site.has_graphs for site in self.sites)

    def _sites(self) -> Iterator[Compiled]:
        source = self.source
        for node in source.nodes:
            if isinstance(node, ast.Call) and source.dotted(node.func) in self._names:
                function = source.parents.get(node)
                if isinstance(function, Definition) and node in function.decorator_list:
                    yield Compiled(node, source, function=function)
                else:
                    yield Compiled(node, source, _subject(node))
            elif isinstance(node, Definition):
                for each in node.decorator_list:
                    if source.dotted(each) in self._names or _is_partial(each, source):
                        yield Compiled(each, source, function=node)

    def of(self, node: ast.expr) -> Compiled | None:
        """The torch.compile that produced the value of an expression."""
        expression: ast.AST | None = node
        for _ in range(4):  # follow a name that is assigned from another name
            if isinstance(expression, ast.expr) and expression in self._by_node:
                return self._by_node[expression]
            if isinstance(expression, Definition):
                return self._by_function.get(expression)
            if isinstance(expression, ast.Call):
                return self._returned(expression)
            if not isinstance(expression, ast.Name | ast.Attribute):
                return None
            expression = self.bindings.meaning(expression)
        return None

    def _returned(self, call: ast.Call) -> Compiled | None:
        """The torch.compile that a called function of the file returns."""
        function = self.bindings.meaning(call.func)
        if not isinstance(function, Definition):
            return None
        for node in walk(function):
            if isinstance(node, ast.Return) and node.value in self._by_node:
                return self._by_node[node.value]
        return None

    def name(self, site: Compiled) -> ast.expr | None:
        """The name that the result is assigned to, if there is exactly one."""
        parent = self.source.parents.get(site.node)
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            target = parent.targets[0]
            return target if isinstance(target, ast.Name | ast.Attribute) else None
        return None

    def within(self, node: ast.AST) -> Iterator[tuple[ast.Call, Compiled]]:
        """The calls of compiled functions inside a node."""
        for each in walk(node):
            if isinstance(each, ast.Call) and (site := self.of(each.func)) is not None:
                yield each, site


@functools.lru_cache(maxsize=4)
def of(source: Source) -> Compilation:
    return Compilation(source)


def literal(node: ast.AST | None) -> str | None:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else None  # type: ignore[union-attr]


def is_true(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _subject(node: ast.Call) -> ast.expr | None:
    if node.args:
        return node.args[0]
    return next((k.value for k in node.keywords if k.arg == "model"), None)


def _is_partial(node: ast.expr, source: Source) -> bool:
    """`functools.partial(torch.compile, ...)`."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    partial = source.dotted(node.func) in ("functools.partial", "partial")
    return partial and source.dotted(node.args[0]) in COMPILE


def wrapped_before(site: Compiled, file: Compilation) -> ast.Call | None:
    """The DDP or FSDP call that wrapped the compiled model, if the file shows it."""
    subject: ast.AST | None = site.subject
    for _ in range(3):
        if isinstance(subject, ast.Call):
            called = name_of(subject, file.source)
            return subject if called in (*DDP, *FSDP, *SHARD) else None
        if (
            isinstance(subject, ast.Name)
            and (shard := _sharded(subject, file)) is not None
        ):
            return shard
        if not isinstance(subject, ast.Name | ast.Attribute):
            return None
        subject = file.bindings.meaning(subject)
    return None


def _sharded(name: ast.Name, file: Compilation) -> ast.Call | None:
    """The call `fully_shard(model)`, if inner modules are sharded too.

    The hooks of the outermost module run outside the compiled code.
    """
    if "fully_shard" not in file.source.text:
        return None
    calls: dict[bool, ast.Call] = {}
    for node in walk(file.bindings.scope(name)):
        if not isinstance(node, ast.Call) or node.lineno >= name.lineno:
            continue
        if name_of(node, file.source) in SHARD and node.args:
            argument = node.args[0]
            calls[isinstance(argument, ast.Name) and argument.id == name.id] = node
    return calls[True] if len(calls) == 2 else None


def name_of(node: ast.Call, source: Source) -> str:
    return (source.dotted(node.func) or "").rpartition(".")[2]


def under_no_grad(node: ast.AST, file: Compilation) -> bool:
    """Whether a `with` or a decorator around it, in its function, stops gradients."""
    source = file.source
    for at in source.above(node):
        used: list[ast.expr] = []
        if isinstance(at, ast.With):
            used = [item.context_expr for item in at.items]
        elif isinstance(at, Definition):
            used = at.decorator_list
        names = [source.dotted(u.func if isinstance(u, ast.Call) else u) for u in used]
        if {"torch.no_grad", "torch.inference_mode"} & set(names):
            return True
        if isinstance(at, Definition):
            return False
    return False


# -- for the report --------------------------------------------------------------------

_PARALLEL = (*DDP, *FSDP, *SHARD, "DataParallel")
# Libraries whose objects have a method `compile()` that is not nn.Module's.
_NOT_MODULES = ("keras", "tensorflow", "sqlalchemy", "jinja2", "jax")


def compile_sites(source: Source) -> list[CompileSite]:
    """Every call and decorator that compiles something, in the order of the file."""
    subjects: dict[ast.expr, str] = {}
    for site in Compilation(source, (*COMPILE, "torchproof.compile")).sites:
        decorated = site.function.name if site.function else ""
        subjects[site.node] = (
            source.text_of(site.subject) if site.subject else decorated
        )
    for node in source.nodes if "compile" in source.text else ():
        if isinstance(node, ast.Call) and node not in subjects:
            subject = _compiled_otherwise(node, source)
            if subject is not None:
                subjects[node] = subject
    sites = [_site(node, subject, source) for node, subject in subjects.items()]
    return sorted(sites, key=lambda site: site.line)


def _compiled_otherwise(node: ast.Call, source: Source) -> str | None:
    """What `model.compile()` and other calls compile; None if they compile nothing."""
    if _is_partial(node, source):
        return ""
    if any(k.arg == "torch_compile" and is_true(k.value) for k in node.keywords):
        return f"the model of {name_of(node, source)}"  # TrainingArguments
    called = node.func
    if not isinstance(called, ast.Attribute) or called.attr != "compile" or node.args:
        return None
    known = all(k.arg in ARGUMENTS for k in node.keywords)
    if not known or source.dotted(called.value) in ("re", "regex", "builtins"):
        return None
    others = any(word in source.text for word in _NOT_MODULES)
    return source.text_of(called.value) if node.keywords or not others else None


def _site(node: ast.expr, subject: str, source: Source) -> CompileSite:
    keywords = node.keywords if isinstance(node, ast.Call) else []
    texts = {k.arg: source.text_of(k.value) for k in keywords if k.arg}
    arguments: dict[str, Any] = {name: texts.get(name) for name in ARGUMENTS}
    order, observation = _order(node, subject, source)
    return CompileSite(
        file=str(source.path),
        line=node.lineno,
        end_line=node.end_lineno or node.lineno,
        function=source.function_at(node),
        subject=subject,
        order=order,
        observation=observation,
        source=source.lines[node.lineno - 1],
        **arguments,
    )


def _order(node: ast.expr, subject: str, source: Source) -> tuple[str | None, str]:
    """Whether the call comes before or after DDP or FSDP, and the consequence."""
    if not any(word in source.text for word in _PARALLEL):
        return None, ""
    file = of(source)
    for site in file.sites:
        wrapping = wrapped_before(site, file) if site.node is node else None
        if wrapping is not None:
            name = name_of(wrapping, source)
            return "after", _AFTER["DDP" if name in DDP else "FSDP"]
    later = _wraps_later(node, subject, source)
    if later is None:
        return None, ""
    split = ": the graphs are split at the gradient buckets" if later in DDP else ""
    return "before", f"{later} wraps it afterwards{split}"


_AFTER = {
    "DDP": "after DDP: the graphs are split at the gradient buckets, and DDP's own"
    " forward breaks the graph",
    "FSDP": "after FSDP: the hooks of sharded modules break the graphs",
}


def _wraps_later(node: ast.expr, subject: str, source: Source) -> str | None:
    """The name of the wrapper applied to the compiled model later in the function."""
    parent = source.parents.get(node)
    if isinstance(parent, ast.Call) and name_of(parent, source) in _PARALLEL:
        return name_of(parent, source)
    names = {subject}
    if isinstance(parent, ast.Assign):
        names |= {source.dotted(target) or "" for target in parent.targets}
    inside = source.function_at(node)
    for other in source.nodes:
        if not isinstance(other, ast.Call) or not other.args:
            continue
        called = name_of(other, source)
        if called not in _PARALLEL or other.lineno <= node.lineno:
            continue
        about = source.dotted(other.args[0]) or ""
        if about in names - {""} and source.function_at(other) == inside:
            return called
    return None
