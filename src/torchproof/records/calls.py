"""The call of a compiled function, its arguments and their sizes.

`Call.read` takes what `observe.entry_calls` wrote in the running program. A `Call`
gives each argument as the expression that the caller wrote.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from torchproof.records.blame import tree_of, whose
from torchproof.records.frame import Frame
from torchproof.records.guards import readable_source
from torchproof.records.mappings import JsonObject

# ("args", 0) or ("kwargs", "input_ids"), then the keys into nested containers.
Path = tuple[Any, ...]

CALLEE: Path = ("callee",)  # the module that is called, which is not an argument


@dataclass(frozen=True)
class Argument:
    """An argument as the caller wrote it; `fixed` if the expression names an object.

    Evaluating a fixed expression again gives the same object.
    """

    words: str
    fixed: bool


@dataclass(frozen=True)
class Call:
    """A recorded call of a compiled function."""

    entry: int
    file: str
    line: int
    function: str
    span: tuple[int, int, int, int] | None
    positional: int
    sources: dict[str, Path]
    sizes: dict[Path, tuple[int, ...]]
    tensors: dict[Path, int] = field(default_factory=dict)  # a number for each object

    @classmethod
    def read(cls, record: JsonObject) -> Call | None:
        if not record or record["site"] is None:
            return None
        file, line, function, span = record["site"]
        return cls(
            entry=record["entry"],
            file=file,
            line=line,
            function=function,
            span=None if None in span else tuple(span),
            positional=record["positional"],
            sources={_name(n, keys): tuple(p) for n, keys, p in record["sources"]},
            sizes={tuple(p): tuple(shape) for p, shape in record["sizes"]},
            tensors={tuple(p): number for p, number in record.get("tensors", ())},
        )

    @classmethod
    def read_from_source(cls, caller: Frame, function: Frame) -> Call | None:
        """The call read from the source, if only its line was recorded.

        None if the line has several calls, or the function is not found.
        """
        calls = [
            node
            for node in ast.walk(tree_of(caller.file))
            if isinstance(node, ast.Call)
            and node.lineno <= caller.line <= (node.end_lineno or node.lineno)
        ]
        defined = [
            node
            for node in ast.walk(tree_of(function.file))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and (node.name, node.lineno) == (function.function, function.line)
        ]
        if len(calls) != 1 or len(defined) != 1:
            return None
        [call], [definition] = calls, defined
        span = (call.lineno, call.end_lineno, call.col_offset, call.end_col_offset)
        return cls(
            entry=-1,
            file=caller.file,
            line=caller.line,
            function=caller.function,
            span=cast(tuple[int, int, int, int], span),
            positional=len(call.args),
            sources=_bound(call, definition.args),
            sizes={},
        )

    def origin(self, source: str) -> tuple[Path, str] | None:
        """The argument that a guard's source starts with, and the rest."""
        begins = [
            name
            for name in self.sources
            if source.startswith(name) and source[len(name) :][:1] in ("", ".", "[")
        ]
        longest = max(begins, key=len, default=None)
        if longest is None:
            return None
        return self.sources[longest], source[len(longest) :]

    @property
    def by_user(self) -> bool:
        """Whether the user's code, not a library's, makes the call."""
        return whose(self.file) == "user"

    def words(self, source: str) -> str:
        """A guard's source as the caller wrote it, else by its parameter's name."""
        origin = self.origin(source)
        if origin is None:
            return source
        path, rest = origin
        written = self.argument(path) if self.by_user else None
        if written is None and len(path) == 1 and rest:  # a part of *args or **kwargs
            return source
        rest = re.sub(r"\['([^'\"]*)'\]", r'["\1"]', rest)
        return (written.words if written else self.name(path, source)) + rest

    def argument(self, path: Path) -> Argument | None:
        """An argument as the caller wrote it; None if that is unclear."""
        call = self._expression()
        if call is None:
            return None
        shift = self._shift(call)
        if shift is None:
            return None
        if path == CALLEE:
            return _as_argument(call.func)
        if len(path) == 1:
            return _all_of(call, path[0])
        kind, key, *rest = path
        node = (
            _keyword(call, key)
            if kind == "kwargs"
            else self._positional(call, key, shift)
        )
        if node is None:
            return None
        for step in rest:
            node = _item(node, step)
        return None if isinstance(node, ast.Constant) else _as_argument(node)

    def described(self, path: Path) -> Argument:
        """An argument as the caller wrote it, else by the name of its parameter."""
        written = self.argument(path) if self.by_user else None
        sources = (s for s, at in self.sources.items() if at == path[: max(len(at), 2)])
        source = next(sources, None)
        if source is None and path[0] == "args":  # torch has not named it
            keys = "".join(f"[{step!r}]" for step in path[1:])
            return written or Argument(f"args{keys}", fixed=True)
        return written or Argument(self.name(path, source or "it"), fixed=True)

    def source_of(self, path: Path) -> str | None:
        """An argument as torch names it in the compiled frame: L['x']."""
        for source, argument_path in self.sources.items():
            if argument_path == path:
                root = re.match(r"\w+", source)
                return f"L['{root[0]}']{source[root.end() :]}" if root else None
        return None

    def name(self, path: Path, source: str) -> str:
        """The name of the parameter, for an argument whose expression is unknown."""
        if path == CALLEE:
            return source.partition(".")[0]
        if len(path) == 1:
            named = "keyword" if path[0] == "kwargs" else "positional"
            return f"the {named} arguments"
        begins = {
            len(at): name
            for name, at in self.sources.items()
            if len(at) > 1 and path[: len(at)] == at
        }
        kind, root, *rest = path
        if kind != "kwargs" and begins:  # the longest part of the path with a name
            root, rest = begins[max(begins)], list(path[max(begins) :])
        elif kind != "kwargs":
            root = re.split(r"[.\[]", source)[0]
        return "".join([str(root), *(f"[{step!r}]" for step in rest)])

    def _expression(self) -> ast.Call | None:
        if self.span is None:
            return None
        line, end_line, column, end_column = self.span
        for node in ast.walk(tree_of(self.file)):
            if isinstance(node, ast.Call) and (
                node.end_lineno == end_line
                and node.end_col_offset == end_column
                and node.lineno <= line
                and (node.lineno != line or node.col_offset <= column)
                and _begins(node, line, column)
            ):
                return node
        return None

    def _shift(self, call: ast.Call) -> int | None:
        """How many arguments are implicit: 1 for `self` of a method, else 0."""
        starred = [a for a in call.args if isinstance(a, ast.Starred)]
        if len(starred) > 1:
            return None
        if starred:
            return 0
        hidden = self.positional - len(call.args)
        return hidden if hidden in (0, 1) else None

    def _positional(self, call: ast.Call, index: int, shift: int) -> ast.expr | None:
        index -= shift
        if index < 0:
            return call.func.value if isinstance(call.func, ast.Attribute) else None
        for number, node in enumerate(call.args):
            if isinstance(node, ast.Starred):
                length = self.positional - (len(call.args) - 1)
                if index < number + length:
                    return _item(node.value, index - number)
                index -= length - 1
            elif number == index:
                return node
        return None


def _bound(call: ast.Call, parameters: ast.arguments) -> dict[str, Path]:
    """The argument of a call that each parameter receives."""
    named = [p.arg for p in (*parameters.posonlyargs, *parameters.args)]
    if named and named[0] in {"self", "cls"}:
        named = named[1:]
    sources: dict[str, Path] = {}
    for number, name in enumerate([*named, *(p.arg for p in parameters.kwonlyargs)]):
        by_position = number < min(len(call.args), len(named))
        sources[name] = ("args", number) if by_position else ("kwargs", name)
    if parameters.vararg is not None:
        rest = range(len(named), len(call.args))
        names = {f"{parameters.vararg.arg}[{n - len(named)}]": n for n in rest}
        sources |= {name: ("args", number) for name, number in names.items()}
    if parameters.kwarg is not None:
        kwargs = parameters.kwarg.arg
        keywords = [k.arg for k in call.keywords if k.arg is not None]
        sources |= {f"{kwargs}[{name!r}]": ("kwargs", name) for name in keywords}
        sources[kwargs] = ("kwargs",)
    return sources


def _begins(node: ast.Call, line: int, column: int) -> bool:
    """Whether a call starts at this position.

    From Python 3.12 on, the position of a method call starts at the attribute.
    """
    at = (node.lineno, node.col_offset)
    attribute = node.func if isinstance(node.func, ast.Attribute) else None
    if attribute is None or at == (line, column):
        return at == (line, column)
    return (line, column) >= (
        attribute.value.end_lineno,
        attribute.value.end_col_offset,
    )


def _all_of(call: ast.Call, kind: str) -> Argument | None:
    """The value that is unpacked into all positional or all keyword arguments."""
    if kind == "kwargs":
        values = [k.value for k in call.keywords if k.arg is None]
        whole = len(call.keywords) == 1 and values
    else:
        values = [a.value for a in call.args if isinstance(a, ast.Starred)]
        whole = len(call.args) == 1 and values
    return _as_argument(values[0]) if whole else None


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword, or the item of the only `**mapping`."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    mappings = [keyword.value for keyword in call.keywords if keyword.arg is None]
    return _item(mappings[0], name) if len(mappings) == 1 else None


def _item(node: ast.expr, key: Any) -> ast.expr:
    """The item of a container: from its literal if it is one, else a subscript."""
    if isinstance(node, ast.Dict):
        for name, value in zip(node.keys, node.values, strict=True):
            if isinstance(name, ast.Constant) and name.value == key:
                return value
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "dict":
        for keyword in node.keywords:
            if keyword.arg == key:
                return keyword.value
    if isinstance(node, (ast.Tuple, ast.List)) and isinstance(key, int):
        starred = any(isinstance(item, ast.Starred) for item in node.elts)
        if key < len(node.elts) and not starred:
            return node.elts[key]
    return ast.Subscript(node, ast.Constant(key), ast.Load())


def _as_argument(node: ast.expr) -> Argument:
    if isinstance(node, ast.NamedExpr):  # the name has no value before the call
        return Argument(_text(node.target), fixed=False)
    return Argument(_text(node), _is_fixed(node))


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        key = node.slice.value
        literal = f'"{key}"' if isinstance(key, str) and '"' not in key else repr(key)
        return f"{_text(node.value)}[{literal}]"
    return ast.unparse(node)


def _is_fixed(node: ast.expr) -> bool:
    """Whether the expression names an object, so that marking it marks the argument."""
    if isinstance(node, ast.Attribute):
        return _is_fixed(node.value)
    if isinstance(node, ast.Subscript):
        simple = isinstance(node.slice, (ast.Constant, ast.Name))
        return simple and _is_fixed(node.value)
    return isinstance(node, ast.Name)


def _name(variable: str, keys: Sequence[Any]) -> str:
    """A source in the form of `Guard.source`: `kwargs['input_ids']`."""
    return readable_source(
        "".join([f"L['{variable}']", *(f"[{key!r}]" for key in keys)])
    )


class Size(NamedTuple):
    """A dimension whose size differs between calls, and the sizes in `seen`."""

    path: Path
    dim: int
    seen: tuple[int, ...]


def varying(calls: Iterable[Call]) -> list[Size]:
    """The dimensions whose sizes differ between calls, for arguments of fixed rank."""
    shapes: dict[Path, list[tuple[int, ...]]] = {}
    for call in calls:
        for path, shape in call.sizes.items():
            shapes.setdefault(path, []).append(shape)
    return [
        Size(path, dim, sizes)
        for path, of_argument in shapes.items()
        if len({len(shape) for shape in of_argument}) == 1
        for dim, sizes in enumerate(zip(*of_argument, strict=True))
        if len(set(sizes)) > 1
    ]
