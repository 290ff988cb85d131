"""Resolves names, methods and calls over several files, and finds what is compiled."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchproof.checking.static import kinds
from torchproof.checking.static.kinds import Kind, words
from torchproof.checking.static.source import Class, Function, Source, Unreadable, walk

COMPILE = ("torch.compile", "torch.compiler.compile")
# Decorators of functions that Dynamo does not trace; `fix` writes those of torchproof.
_DISABLED = words(
    "torch.compiler.disable torch._dynamo.disable torch._disable_dynamo"
    " torch.jit.ignore torch.jit.unused torch.compiler.allow_in_graph torch.jit.script"
    " torch.library.custom_op triton.jit torch.compiler.assume_constant_result"
    " torch._dynamo.allow_in_graph torch.compiler.nonstrict_trace"
    " torchproof.in_graph torchproof.on_host"
)
_CALLS = (ast.List, ast.ListComp, ast.BinOp)  # forms of a list of calls
_OTHER_FORWARDS = ("torch.autograd.Function", "torch.autograd.function.Function")


class Program:
    """Sources by path. With `follows`, also reads the files that they import."""

    def __init__(self, sources: Iterable[Source], *, follows: bool = False) -> None:
        self.sources = {source.path: source for source in sources}
        self._follows = follows
        self.returned: dict[Function, Kind] = {}  # a cache of `flow.returned`
        self.depth = 0  # of nested calls of `flow.returned`
        self._attributes: dict[Class, dict[str, Kind]] = {}
        self._assigned: dict[Class, dict[str, list[ast.expr]]] = {}

    # -- name resolution ---------------------------------------------------------------

    def find(self, dotted: str, source: Source) -> Class | Function | None:
        """The class or function of a dotted name, in this file or one it imports."""
        if dotted in source.classes:
            return source.classes[dotted]
        if dotted in source.functions:
            return source.functions[dotted]
        owner, _, name = dotted.rpartition(".")
        if owner in source.classes:
            return self.method(source.classes[owner], name)
        if not self._follows or not owner or owner.partition(".")[0] == "torch":
            return None  # do not check the code of torch itself
        for path in _candidates(owner, source.path):
            other = self._load(path)
            if other is not None and name in other.classes:
                return other.classes[name]
            if other is not None and name in other.functions:
                return other.functions[name]
        return None

    def _load(self, path: Path) -> Source | None:
        if path not in self.sources:
            try:
                self.sources[path] = Source.read(path)
            except Unreadable:
                return None
        return self.sources[path]

    def lineage(self, cls: Class) -> Iterator[Class]:
        """A class and its bases, as far as the sources contain them."""
        visited: set[Class] = set()
        waiting = [cls]
        while waiting:
            current = waiting.pop(0)
            if current in visited:
                continue
            visited.add(current)
            yield current
            for base in current.bases:
                base_class = self.find(base, current.source)
                if isinstance(base_class, Class):
                    waiting.append(base_class)

    def method(self, cls: Class, name: str) -> Function | None:
        for each in self.lineage(cls):
            if name in each.methods:
                return each.methods[name]
        return None

    def is_module(self, cls: Class) -> bool:
        """Whether instances are modules: by their bases, or because of a forward."""
        bases = [base for each in self.lineage(cls) for base in each.bases]
        if any(base in _OTHER_FORWARDS for base in bases):
            return False
        if any(base.startswith("torch.nn.") for base in bases):
            return True
        return bool(bases) and self.method(cls, "forward") is not None

    def attribute(self, cls: Class, name: str) -> Kind:
        """The kind of `self.name`, as the class and its bases set it."""
        for each in self.lineage(cls):
            if each not in self._attributes:
                self._attributes[each] = dict(_attributes(each))
            if name in self._attributes[each]:
                return self._attributes[each][name]
        return Kind.UNKNOWN

    def instance(self, cls: Class, name: str) -> Class | None:
        """The class of `self.name`, if it is an instance of a class in the sources."""
        for each in self.lineage(cls):
            values = self._set_in(each).get(name, [])
            constructors = {
                each.source.dotted(value.func) if isinstance(value, ast.Call) else None
                for value in values
            }
            if values:
                dotted = constructors.pop() if len(constructors) == 1 else None
                target = self.find(dotted, each.source) if dotted else None
                return target if isinstance(target, Class) else None
        return None

    def assigned(self, cls: Class, name: str) -> list[ast.expr]:
        """Every value that the class and its bases assign to `self.name`."""
        return [v for c in self.lineage(cls) for v in self._set_in(c).get(name, [])]

    def _set_in(self, cls: Class) -> dict[str, list[ast.expr]]:
        if cls not in self._assigned:
            self._assigned[cls] = _assignments(cls)
        return self._assigned[cls]

    def callee(self, call: ast.Call, function: Function) -> Function | None:
        """The called function, if the sources contain it."""
        dotted = function.source.dotted(call.func)
        if dotted is None:
            return self._of_super(call, function)
        first, _, rest = dotted.partition(".")
        if first in ("self", "cls") and function.owner is not None:
            part, _, name = rest.partition(".")
            if not name and (method := self.method(function.owner, part)):
                return method
            if "." in name or (instance := self.instance(function.owner, part)) is None:
                return None
            return self.method(instance, name or "forward")
        target = self.find(f"{function.name}.{dotted}", function.source)
        target = target or self.find(dotted, function.source)
        return target if isinstance(target, Function) else None

    def _of_super(self, call: ast.Call, function: Function) -> Function | None:
        attribute = call.func
        if not (
            isinstance(attribute, ast.Attribute)
            and isinstance(attribute.value, ast.Call)
        ):
            return None
        if (
            function.source.dotted(attribute.value.func) != "super"
            or not function.owner
        ):
            return None
        for each in list(self.lineage(function.owner))[1:]:
            if attribute.attr in each.methods:
                return each.methods[attribute.attr]
        return None

    # -- compiled functions ------------------------------------------------------------

    def roots(self, source: Source) -> list[Function]:
        """Each module's forward, compiled functions, and those a factory returns."""
        roots = []
        for cls in source.classes.values():
            forward = cls.methods.get("forward")
            if forward and forward.is_bound and self.is_module(cls):
                roots += [] if _compiles_parts(cls) else [forward]
        compiled = list(_compiled(source))
        # A file that calls torch.compile itself returns functions that are not
        # compiled as a whole.
        compiles = any(f"{name}(" in source.text for name in COMPILE)
        roots += compiled if compiles else [*compiled, *_factory_functions(source)]
        return [f for f in dict.fromkeys(roots) if not is_disabled(f)]


def _compiles_parts(cls: Class) -> bool:
    """Whether a class compiles its submodules, so that its own forward is not."""
    if "compile" not in cls.source.text:
        return False
    for method in cls.methods.values():
        for node in walk(method.node):
            if not isinstance(node, ast.Call):
                continue
            dotted = cls.source.dotted(node.func) or ""
            whole = node.args and cls.source.dotted(node.args[0]) == "self.forward"
            if dotted in COMPILE and not whole:
                return True
            words = dotted.split(".")
            if words[-1] == "compile" and words[0] not in ("re", "regex", "self"):
                return words[0] != "builtins" and len(words) > 1
    return False


def is_disabled(function: Function) -> bool:
    """Whether a decorator keeps Dynamo out of the function."""
    return any(name in _DISABLED for name in function.decorators)


def _compiled(source: Source) -> Iterator[Function]:
    for function in source.functions.values():
        if any(name in COMPILE for name in function.decorators):
            yield function
    for node in source.calls(*COMPILE):
        subject = (source.dotted(node.args[0]) if node.args else None) or ""
        if subject in source.functions:
            yield source.functions[subject]
        elif "." in subject:  # model.step = torch.compile(model.step)
            name = subject.rpartition(".")[2]
            owners = [c for c in source.classes.values() if name in c.methods]
            if len(owners) == 1:
                yield owners[0].methods[name]


def _factory_functions(source: Source) -> Iterator[Function]:
    """The functions that factories return to be called: `fn` in `return fn, calls`."""
    for node in source.of(ast.Return):
        if not isinstance(node.value, ast.Tuple):
            continue
        pair = node.value.elts
        if len(pair) != 2 or not isinstance(pair[1], _CALLS):
            continue
        inside = source.functions.get(source.function_at(node) or "")
        if inside is not None and not inside.parameters:
            name = source.dotted(pair[0]) or ""
            function = source.functions.get(f"{inside.name}.{name}")
            function = function or source.functions.get(name)
            if function is not None:
                yield function


def _attributes(cls: Class) -> Iterator[tuple[str, Kind]]:
    """The attributes that the class sets on its instances."""
    for child in cls.node.body:
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield child.target.id, kinds.of_annotation(child.annotation)
        if isinstance(child, ast.Assign) and isinstance(child.value, ast.Constant):
            for target in child.targets:
                if isinstance(target, ast.Name):
                    yield target.id, Kind.PYTHON
    set_by_methods: dict[str, Kind] = {}
    for method in cls.methods.values():
        for node in walk(method.node):
            for name, kind in _set_by(node, cls.source, method):
                set_by_methods[name] = kinds.join(set_by_methods.get(name, kind), kind)
    yield from set_by_methods.items()


def _assignments(cls: Class) -> dict[str, list[ast.expr]]:
    """The values that the methods of a class assign to `self.name`."""
    values: dict[str, list[ast.expr]] = {}
    for method in cls.methods.values():
        for node in walk(method.node):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                targets = [node.target]
            for target in targets:
                if name := cls.source.own(target):
                    values.setdefault(name, []).append(node.value)  # type: ignore[attr-defined]
    return values


def _set_by(
    node: ast.AST, source: Source, method: Function
) -> Iterator[tuple[str, Kind]]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        named = node.args and isinstance(node.args[0], ast.Constant)
        if node.func.attr in ("register_buffer", "register_parameter") and named:
            yield str(node.args[0].value), Kind.TENSOR  # type: ignore[attr-defined]
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if name := source.own(target):
                yield name, _assigned(node.value, source, method)


def _assigned(value: ast.expr, source: Source, method: Function) -> Kind:
    if isinstance(value, ast.Constant):
        return Kind.NONE if value.value is None else Kind.PYTHON
    if isinstance(value, ast.List | ast.Dict | ast.JoinedStr | ast.Set):
        return Kind.PYTHON
    if isinstance(value, ast.Name):
        for parameter in method.parameters:
            if parameter.arg == value.id:
                return kinds.of_annotation(parameter.annotation)
    if isinstance(value, ast.Call):
        dotted = source.dotted(value.func) or ""
        if dotted.startswith("torch.nn.") and not dotted.startswith("torch.nn.f"):
            return kinds.of_module(dotted)
        return kinds.of_torch(dotted) or Kind.UNKNOWN
    return Kind.UNKNOWN


@functools.lru_cache(maxsize=4096)
def _candidates(module: str, importer: Path) -> tuple[Path, ...]:
    """The files that a module name may refer to from a file, without importing."""
    dots = len(module) - len(module.lstrip("."))
    words = [word for word in module.lstrip(".").split(".") if word]
    if dots:
        starts = [importer.parents[dots - 1]] if len(importer.parents) >= dots else []
    else:
        package = importer.parent
        while (package / "__init__.py").exists() and package != package.parent:
            package = package.parent
        starts = [package, importer.parent]
    paths = [start.joinpath(*words) for start in dict.fromkeys(starts)]
    files = [
        p for path in paths for p in (path.with_suffix(".py"), path / "__init__.py")
    ]
    return tuple(file for file in files if file.is_file())
