"""The fingerprint of a model: enough to identify it in another process.

Takes a model or a function. Returns plain data: its class, its number of parameters, a
hash of its structure (the class of each submodule; names, shapes and types of
parameters and buffers, but neither values nor devices), and a hash of the code of each
file that defines one of its classes. Comments, formatting and docstrings do not count.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torchproof.records import Namespace, files, shapes

_DIGITS = 32
# The attribute of a wrapper that has the wrapped model.
_WRAPPERS = {"DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}
_PLAIN = ("Parameter", "Tensor", "Buffer")


def fingerprint(model: Any) -> shapes.Fingerprint:
    """The fingerprint; `code` has None for a file that cannot be read."""
    subject, method = _subject(model)
    if not _is_module(subject):
        return _of_function(subject)
    name = type(subject).__qualname__
    kinds = {type(part) for part in subject.modules()}
    return {
        "class": name if method is None else f"{name}.{method}",
        "parameters": sum(map(_numel, subject.parameters())),
        "structure": structure(subject),
        "code": _code(kinds),
    }


def structure(module: Any) -> str:
    """A hash of what two models must have in common to run the same strategy.

    Classes are named without their module: that has another name if a file is loaded by
    its path, and its code is compared anyway.
    """
    lines = [f"{path}:{type(part).__qualname__}" for path, part in _parts(module)]
    for kind, named in (
        ("parameter", module.named_parameters(remove_duplicate=False)),
        ("buffer", module.named_buffers(remove_duplicate=False)),
    ):
        lines += [f"{kind} {name}:{_tensor(each)}" for name, each in named]
    return _hash("\n".join(lines))


def _parts(module: Any) -> Iterator[tuple[str, Any]]:
    # A submodule that is used twice is listed twice: tying is part of the structure.
    parts: Iterator[tuple[str, Any]] = module.named_modules(remove_duplicate=False)
    return parts


def _tensor(tensor: Any) -> str:
    kind = type(tensor).__name__
    subclass = "" if kind in _PLAIN else kind
    return f"{subclass}{_shape(tensor)}{tensor.dtype}"


def _shape(tensor: Any) -> str:
    try:
        return str(tuple(tensor.shape))
    except RuntimeError:  # a lazy module does not know its shapes yet
        return "lazy"


def _numel(tensor: Any) -> int:
    try:
        return int(tensor.numel())
    except (RuntimeError, ValueError):
        return 0


def _subject(model: Any) -> tuple[Any, str | None]:
    """The model inside wrappers; for a method, its module and its name."""
    method = None
    while True:
        if isinstance(model, functools.partial):
            model = model.func
        elif inspect.ismethod(model) and _is_module(model.__self__):
            model, method = model.__self__, model.__name__
        elif (inner := _WRAPPERS.get(type(model).__name__)) and hasattr(model, inner):
            model = getattr(model, inner)
        elif not _is_module(model) and hasattr(model, "__wrapped__"):
            model = model.__wrapped__
        else:
            return model, method


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _of_function(function: Any) -> shapes.Fingerprint:
    named = function if hasattr(function, "__qualname__") else type(function)
    path = _file_of(named)
    return {
        "class": str(named.__qualname__),
        "parameters": None,
        "structure": None,
        "code": {_called(str(named.__module__), path): _file_hash(path)},
    }


# -- code ------------------------------------------------------------------------------


def _code(kinds: set[type]) -> dict[str, str | None]:
    """Code hashes of the files that define the classes or their `forward`."""
    homes: Namespace = {}
    for kind in kinds:
        homes[kind.__module__] = kind
        forward = inspect.unwrap(getattr(kind, "forward", kind))
        homes.setdefault(getattr(forward, "__module__", None) or "", forward)
    files = {
        name: _file_of(homes[name])
        for name in sorted(homes)
        if name and name.partition(".")[0] != "torch"
    }
    return {_called(name, path): _file_hash(path) for name, path in files.items()}


def _called(name: str, path: str | None) -> str:
    """The module's own name, also if a target was loaded by its path."""
    stem = None if path is None else os.path.basename(path).removesuffix(".py")
    return stem if stem is not None and name == f"target_{stem}" else name


def _file_of(defined: Any) -> str | None:
    home = sys.modules.get(defined.__module__)
    path = getattr(home, "__file__", None)
    if path is None or not path.endswith(".py"):
        try:
            path = inspect.getsourcefile(defined)
        except (TypeError, OSError):
            return None
    return path


def _file_hash(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        stat = os.stat(path)
        return _hash_of_file(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=256)
def _hash_of_file(path: str, changed: int, size: int) -> str:
    with files.open_regular(path) as file:
        return code_hash(file.read())


def code_hash(source: str | bytes) -> str:
    """A hash of a program that does not depend on its formatting."""
    parts: list[str] = []
    _dump(ast.parse(source), parts.append)
    return _hash("\0".join(parts))


def _dump(node: ast.AST, note: Callable[[str], None]) -> None:
    """As `ast.dump`, without empty fields: those differ between Python versions."""
    note(type(node).__name__)
    for name in node._fields:
        value = getattr(node, name, None)
        if value is None or value == []:
            continue
        note(name)
        if isinstance(value, ast.AST):
            _dump(value, note)
        elif not isinstance(value, list):
            note(repr(value))
        else:
            for each in value[_has_docstring(node, name) :]:
                if not isinstance(each, ast.AST):
                    note(repr(each))
                elif not (isinstance(node, ast.JoinedStr) and _is_empty(each)):
                    _dump(each, note)
    note(")")


def _is_empty(part: ast.AST) -> bool:
    """Whether a part of an f-string adds nothing; only Python 3.12 has such parts."""
    return isinstance(part, ast.Constant) and part.value == ""


def _has_docstring(node: ast.AST, field: str) -> bool:
    if field != "body" or not isinstance(
        node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ):
        return False
    first = node.body[0]
    return (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
