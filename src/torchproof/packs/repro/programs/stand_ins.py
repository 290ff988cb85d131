"""Writes a function of a running program as source that needs only torch.

Takes code objects, their globals and their arguments. An object becomes a stand-in: an
instance of a class with only the attributes and methods that the code uses. A function
that did not run becomes a stub.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import enum
import functools
import inspect
import logging
import math
import sys
import textwrap
import types
from collections.abc import Mapping
from typing import Any

import torch

from torchproof.packs.repro.programs.file_merger import Unsuitable
from torchproof.packs.repro.programs.scopes import Names
from torchproof.packs.repro.programs.tensor_expressions import (
    is_torch_module,
    module_like,
    tensor_like,
)
from torchproof.packs.repro.programs.tree_shaking import (
    AVAILABLE,
    without_annotations,
)
from torchproof.records import whose

_INIT = """\
def __init__(self, **attributes):
    super().__init__()
    for name, value in attributes.items():
        setattr(self, name, value)
"""
_RETURNING = """\
class Returning(torch.nn.Module):
    def __init__(self, **attributes):
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *args, **kwargs):
        return self.output
"""
_Definition = ast.FunctionDef | ast.AsyncFunctionDef
_DECORATORS = ("torch", "staticmethod", "classmethod", "property", "contextlib")
_PLACES: tuple[tuple[str, Any], ...] = (
    ("torch", torch),
    ("torch.nn", torch.nn),
    ("torch.nn.functional", torch.nn.functional),
    ("torch.Tensor", torch.Tensor),
)
# Code reaches the children of these by index, not by name.
_INDEXED = (torch.nn.ModuleDict, torch.nn.ModuleList, torch.nn.Sequential)


class SourceWriter:
    """Writes values and functions; `executed` is all code that ran.

    If `shallow`, a module with its own code becomes one that returns the same output.
    """

    def __init__(self, executed: set[types.CodeType], *, shallow: bool = False) -> None:
        self._executed = executed
        self._shallow = shallow
        self.whole: Any = None  # with `shallow`, the one module that is written in full
        self.returning: dict[str, Any] = {}
        self._used = {n for code in executed for n in _words_in(code)} | {"training"}
        self.imports: dict[str, None] = {"import torch": None}
        self.definitions: dict[str, str] = {}
        self.lines: list[str] = []  # the body of make()
        self.shared: list[str] = []  # globals that make() assigns
        self.objects: dict[str, Any] = {}  # by name; also keeps them alive
        self._memo: dict[int, str] = {}
        self._alive: list[Any] = []  # else Python could reuse an id in _memo
        self._globals: dict[tuple[str, int], str] = {}
        self._taken: set[str] = set()

    # -- values ------------------------------------------------------------------------

    def value(self, obj: Any) -> str:
        if (source := _literal(obj)) is not None:
            return source
        if id(obj) in self._memo:
            return self._memo[id(obj)]
        if type(obj) in (list, tuple, set, dict):
            return self._container(obj)
        if isinstance(obj, torch.Tensor):
            return self._assign(obj, tensor_like(obj), "t")
        if isinstance(obj, types.ModuleType):
            return self._module(obj)
        if isinstance(obj, type):
            return self.class_(obj)
        if callable(obj) and hasattr(obj, "__name__"):
            return self._callable(obj)
        if isinstance(obj, logging.Logger):
            self.imports["import logging"] = None
            return "logging.getLogger()"
        return self._object(obj)

    def _container(self, obj: Any) -> str:
        if isinstance(obj, dict):
            inner = [f"{self.value(k)}: {self.value(v)}" for k, v in obj.items()]
            return "{" + ", ".join(inner) + "}"
        inner = [self.value(item) for item in obj]
        if isinstance(obj, tuple):
            return "(" + ", ".join(inner) + ("," if len(inner) == 1 else "") + ")"
        if isinstance(obj, set):
            return "{" + ", ".join(inner) + "}" if inner else "set()"
        return "[" + ", ".join(inner) + "]"

    def _object(self, obj: Any) -> str:
        if isinstance(obj, torch.nn.Module) and is_torch_module(obj):
            return self._assign(obj, module_like(obj, self.value), "m")
        if isinstance(obj, functools.partial):
            self.imports["import functools"] = None
            arguments = [self.value(v) for v in (obj.func, *obj.args)]
            arguments += [f"{k}={self.value(v)}" for k, v in obj.keywords.items()]
            return f"functools.partial({', '.join(arguments)})"
        if not is_extracted(_file_of(type(obj))):
            raise Unsuitable(f"cannot rebuild an object of type {type(obj).__name__}")
        module = isinstance(obj, torch.nn.Module)
        if self._shallow and module and obj is not self.whole:
            self.definitions.setdefault("Returning", _RETURNING)
            name = self._stand_in(obj, "Returning")
            self.returning[name] = obj
            return name
        return self._stand_in(obj, self.class_(type(obj), stand_in=True))

    def _stand_in(self, obj: Any, kind: str) -> str:
        name = self._assign(obj, f"{kind}()", "o")
        attributes = []
        for attribute in self.attributes(obj):
            try:
                value = self.value(getattr(obj, attribute))
            except Unsuitable:
                value = "None"
            is_keyword = attribute.isidentifier()
            attributes.append(
                f"{attribute}={value}"
                if is_keyword
                else f"**{{{attribute!r}: {value}}}"
            )
        self.lines.remove(f"{name} = {kind}()")  # it must follow its attributes
        self.lines.append(f"{name} = {kind}({', '.join(attributes)})")
        return name

    def attributes(self, obj: Any) -> list[str]:
        """Returns the attributes of an object that the code uses."""
        values = dict(getattr(obj, "__dict__", {}))
        if isinstance(obj, torch.nn.Module):
            values |= dict(obj.named_children())
            values |= dict(obj.named_parameters(recurse=False))
            values |= dict(obj.named_buffers(recurse=False))
            if obj.training:
                values.pop("training", None)
        elif isinstance(obj, dict):
            values |= {k: v for k, v in obj.items() if isinstance(k, str)}
        used = set(values) & self._used
        if isinstance(obj, _INDEXED):
            used |= set(dict(obj.named_children()))
        kind = type(obj)
        fixed = {n for n in values if isinstance(getattr(kind, n, None), property)}
        return sorted(used - fixed - {"forward"})

    def _assign(self, obj: Any, source: str, prefix: str) -> str:
        """Assigns an object to a name, so that all its uses share one object."""
        name = self._free(f"{prefix}{len(self.objects)}")
        self._memo[id(obj)] = name
        self.objects[name] = obj
        self.lines.append(f"{name} = {source}")
        return name

    # -- modules and functions ---------------------------------------------------------

    def _module(self, module: types.ModuleType) -> str:
        name = module.__name__
        if name.partition(".")[0] not in AVAILABLE:
            raise Unsuitable(f"it uses the module {name}")
        self.imports[f"import {name}"] = None
        return name

    def _callable(self, obj: Any) -> str:
        if isinstance(obj, types.MethodType):
            return f"{self.value(obj.__self__)}.{obj.__name__}"
        inner = inspect.unwrap(obj)
        code = getattr(inner, "__code__", None)
        if code is not None and is_extracted(code.co_filename):
            return self.function(inner)
        name = str(getattr(obj, "__name__", ""))
        for place, owner in _PLACES:
            if getattr(owner, name, None) is obj:
                return f"{place}.{name}"
        home = sys.modules.get(str(getattr(obj, "__module__", "")))
        if home is None or getattr(home, name, None) is not obj:
            raise Unsuitable(f"the function {name} is not importable")
        return name if home is builtins else f"{self._module(home)}.{name}"

    def function(self, function: types.FunctionType) -> str:
        if function.__code__ not in self._executed:
            return self._stub(function)
        closed = inspect.getclosurevars(function).nonlocals
        return self.code(function.__code__, function.__globals__, closed)

    def _stub(self, function: types.FunctionType) -> str:
        name = self._name(function, function.__name__)
        text = f"def {name}(*args, **kwargs):\n    raise NotImplementedError"
        self.definitions.setdefault(name, text)
        return name

    def code(
        self, code: types.CodeType, names: Mapping[str, Any], closed: Mapping[str, Any]
    ) -> str:
        """Writes a function by its code object, at module level."""
        if id(code) in self._memo:
            return self._memo[id(code)]
        tree = _definition_of(code)
        name = self._name(code, code.co_name)
        self.definitions[name] = ""  # ends the recursion of a recursive function
        tree.name = name
        source = self._resolve(tree, {**names, **closed})
        self.definitions.pop(name)  # it must follow names that its defaults read
        self.definitions[name] = source
        return name

    def _name(self, obj: Any, preferred: str) -> str:
        if id(obj) not in self._memo:
            name = self._free(preferred)
            self._memo[id(obj)] = name
            self._alive.append(obj)
            return name
        return self._memo[id(obj)]

    def _free(self, preferred: str) -> str:
        preferred = preferred.strip("<>")
        name, number = preferred, 2
        while name in self._taken or hasattr(builtins, name):
            name, number = f"{preferred}_{number}", number + 1
        self._taken.add(name)
        return name

    def _resolve(self, tree: ast.stmt, names: Mapping[str, Any]) -> str:
        """Writes the globals that a definition reads, then returns its source."""
        module = ast.Module([tree], [])
        resolver = Names(module)
        new_names: dict[str, str] = {}
        for name in sorted(resolver.undefined()):
            if name in names:
                new_names[name] = self._global(name, names[name])
        for occurrence in resolver.occurrences:
            if resolver.binding(occurrence) is None and occurrence.name in new_names:
                occurrence.write(new_names[occurrence.name])
        return ast.unparse(ast.fix_missing_locations(module))

    def _global(self, name: str, obj: Any) -> str:
        """Writes a global, or None if it cannot be written, and returns its name."""
        if (name, id(obj)) in self._globals:
            return self._globals[name, id(obj)]
        try:
            source = self.value(obj)
        except Unsuitable:
            source = "None"
        if source in self.objects:  # make() assigns it, and functions read it
            self.shared.append(source)
        if source.replace(".", "").isidentifier() and source != "None":
            return source
        new_name = self._free(name)
        self._globals[name, id(obj)] = new_name
        self._alive.append(obj)
        if isinstance(obj, list | dict | set):
            self.lines.append(f"{new_name} = {source}")
            self.shared.append(new_name)
        else:
            self.definitions[new_name] = f"{new_name} = {source}"
        return new_name

    # -- classes -----------------------------------------------------------------------

    def class_(self, kind: type, *, stand_in: bool = False) -> str:
        if not is_extracted(_file_of(kind)):
            return self._callable(kind)
        if id(kind) in self._memo:
            return self._memo[id(kind)]
        if issubclass(kind, enum.Enum):
            return self._enumeration(kind)
        name = self._name(kind, kind.__name__)
        self.definitions[name] = ""
        bases = [b for base in kind.__bases__ for b in self._bases(base)]
        members = self._members(kind)
        head = f"class {name}({', '.join(dict.fromkeys(bases))}):"
        if dataclasses.is_dataclass(kind) and not stand_in:
            self.imports["import dataclasses"] = None
            head = "@dataclasses.dataclass\n" + f"class {name}:"
            members = [
                f"{f.name}: object = None" for f in dataclasses.fields(kind)
            ] + members
        elif stand_in and not any(b in self.definitions for b in bases):
            members.insert(0, _INIT)
        body = textwrap.indent("\n".join(members) or "pass", "    ")
        self.definitions.pop(name)
        self.definitions[name] = f"{head}\n{body}"
        return name

    def _bases(self, base: type) -> list[str]:
        """Returns the nearest bases with methods that ran, or bases of torch."""
        if base is object:
            return []
        if not is_extracted(_file_of(base)):
            abstract = type(base) is not type or base.__module__ == "typing"
            return [] if abstract else [self._callable(base)]
        if self._functions(base):
            return [self.class_(base, stand_in=True)]
        return [name for inner in base.__bases__ for name in self._bases(inner)]

    def _functions(self, kind: type) -> dict[str, types.FunctionType]:
        """Returns the methods of a class that ran, without wrappers."""
        functions = {}
        for name, member in vars(kind).items():
            inner = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if isinstance(inner, types.FunctionType):
                deepest = inspect.unwrap(inner)
                if deepest.__code__ in self._executed and name != "__init__":
                    functions[name] = deepest
        return functions

    def _members(self, kind: type) -> list[str]:
        members = []
        for name, member in vars(kind).items():
            special = name.startswith("__")
            used = name in self._used and not special
            if used and (source := _literal(member)) is not None:
                members.append(f"{name} = {source}")
        for name, function in self._functions(kind).items():
            tree = _definition_of(function.__code__)
            tree.name = name
            closed = {
                k: v
                for k, v in inspect.getclosurevars(function).nonlocals.items()
                if k != "__class__"
            }
            members.append(self._resolve(tree, {**function.__globals__, **closed}))
        return members

    def _enumeration(self, kind: type[enum.Enum]) -> str:
        name = self._name(kind, kind.__name__)
        self.imports["import enum"] = None
        members = "\n".join(f"    {m.name} = {m.value!r}" for m in kind)
        self.definitions[name] = f"class {name}(enum.Enum):\n{members}"
        return name


# -- reading live objects --------------------------------------------------------------


def is_extracted(file: str) -> bool:
    """Whether code belongs to the user or a library, and so has to be extracted."""
    return whose(file) in {"user", "library"}


def _words_in(code: types.CodeType) -> set[str]:
    """Returns names and strings of a code object and of nested ones."""
    words = set(code.co_names) | {c for c in code.co_consts if isinstance(c, str)}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            words |= _words_in(inner)
    return words


def _literal(value: Any) -> str | None:
    """Returns the source of a plain value of Python or torch; None for others."""
    if value is None or type(value) in (
        bool,
        int,
        str,
        bytes,
        complex,
        types.EllipsisType,
    ):
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"float('{value}')"
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return repr(value)
    if isinstance(value, torch.device):
        return f"torch.device({value.type!r})"
    if isinstance(value, torch.Size):
        return f"torch.Size({list(value)})"
    if isinstance(value, enum.Enum) and whose(_file_of(type(value))) == "user":
        return None
    if type(value) is slice:
        return f"slice({value.start}, {value.stop}, {value.step})"
    return None


def _definition_of(code: types.CodeType) -> _Definition:
    """Parses the definition of a code object; drops annotations and most decorators."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError, TypeError) as error:
        raise Unsuitable(f"no source for {code.co_name}: {error}") from None
    node = tree.body[0] if tree.body else None
    if not isinstance(node, _Definition):
        raise Unsuitable(f"{code.co_name} is not a named function")
    decorators = node.decorator_list
    node.decorator_list = []
    without_annotations(tree)
    node.decorator_list = [
        d
        for d in decorators
        if ast.unparse(d).partition(".")[0].partition("(")[0] in _DECORATORS
    ]
    return node


def _file_of(kind: type) -> str:
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None) or "/lib/python3.11/builtins"
