"""Finds each torch.compile of a file, and the calls that run its result."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchproof.checking.static import bindings
from torchproof.checking.static.program import COMPILE
from torchproof.checking.static.source import Definition, Source, walk

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

    def __init__(self, source: Source) -> None:
        self.source = source
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
            if isinstance(node, ast.Call) and source.dotted(node.func) in COMPILE:
                function = source.parents.get(node)
                if isinstance(function, Definition) and node in function.decorator_list:
                    yield Compiled(node, source, function=function)
                else:
                    yield Compiled(node, source, _subject(node))
            elif isinstance(node, Definition):
                for each in node.decorator_list:
                    if source.dotted(each) in COMPILE or _is_partial(each, source):
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
