"""What code does with a value that no tracing knows, as far as the source shows it.

A captured number, or a tensor whose size depends on values, stays in a graph unless
Python has to know it: for a test, an index, a text, the rounds of a loop.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from torchproof.checking.static.line_facts import head, parsed, path_to
from torchproof.checking.static.source import Definition, Source
from torchproof.records import tree_of


class Use(Enum):
    """What a node is, of the value or of what is computed from it."""

    NUMBER = auto()
    NUMBERS = auto()  # as many as the source says
    TENSOR = auto()  # with a size that depends on values
    TENSORS = auto()  # as many as the source says
    NOTHING = auto()  # nothing that depends on it
    PYTHON = auto()  # Python needs the value, or code generation does


_FUNCTIONS = Definition | ast.Lambda
_MANY = {Use.NUMBER: Use.NUMBERS, Use.TENSOR: Use.TENSORS}
_ONE = {many: one for one, many in _MANY.items()}
# What a tensor has that no size changes.
_KNOWN = {"dtype", "device", "ndim", "requires_grad", "dim", "is_cuda"}
_OF_TENSORS = {
    "shape": Use.NUMBERS,
    "size": Use.NUMBER,
    "numel": Use.NUMBER,
    "nelement": Use.NUMBER,
    "item": Use.NUMBER,
    "tolist": Use.PYTHON,
}
_TENSORS = (Use.TENSOR, Use.TENSORS)
_OF_NUMBERS = {"int", "float", "abs", "min", "max", "sum"}  # builtins that are captured
_OF_LISTS = {"list", "tuple", "zip", "enumerate", "reversed"}
# Inductor's code for a product of batches asks for the sizes.
_BATCHED = {"bmm", "baddbmm", "einsum", "matmul"}
_BATCHED_LAYERS = re.compile("Attention|Transformer")
_PARTS = {"split", "split_with_sizes", "tensor_split"}
# Modules whose functions take a number into the graph; those of torch that do not.
_IN_GRAPHS = re.compile(r"(?:torch(?:\.(?:linalg|special|fft|nn\.functional))?|F)\.\w+")
_OUTSIDE = re.compile(r"torch\.(?:manual_seed|seed|save|load|set_|is_|compile)")
# Methods that take numbers, and that hardly an object but a tensor has.
_TENSOR_METHODS = re.compile(
    r"\w+[^_]_|view|reshape|expand|repeat|new_\w+|narrow|unflatten|clamp\w*|masked_fill"
    r"|mul|div|sub|pow|roll|chunk|topk|select"
)
_CONVERSIONS = {"int", "float", "bool", "complex"}


def decides(file: str, line: int, expression: str, *, number: bool) -> bool:
    """Whether the code needs the value of a number, or of a tensor's size, in Python.

    Also what is computed from it counts, as far as local variables and the functions
    of the file show it.
    """
    tree = tree_of(file)
    path = reversed(path_to(tree, line))
    statement = next((n for n in path if isinstance(n, ast.stmt)), None)
    if statement is None:
        return True
    text = ast.dump(parsed(expression) or head(statement))
    first = [node for node in ast.walk(statement) if ast.dump(node) == text]
    if number and first and not _converts(first[0]):
        inner = [each for node in first for each in ast.walk(node) if _converts(each)]
        first = inner or first
    of_numbers = Use.NUMBERS if expression.endswith(".tolist()") else Use.NUMBER
    walk = _Walk(
        _source(tree), [(node, of_numbers if number else Use.TENSOR) for node in first]
    )
    return not first or walk.needs_python()


def _converts(node: ast.AST) -> bool:
    """Whether an expression makes a number of a tensor."""
    match node:
        case ast.Call(ast.Attribute(attr="item" | "tolist" | "__bool__")):
            return True
        case ast.Call(ast.Name(name)):
            return name in _CONVERSIONS
    return False


@functools.lru_cache(maxsize=16)
def _source(tree: ast.Module) -> Source:
    return Source(Path(), "", tree)


@dataclass
class _Walk:
    """Follows values upwards in expressions, and through names."""

    source: Source
    pending: list[tuple[ast.AST, Use]]
    names: set[tuple[ast.AST, str, Use]] = field(default_factory=set)  # followed

    def needs_python(self) -> bool:
        while self.pending:
            node, use = self.pending.pop()
            around = self.source.parents[node]
            use = self._statement(around, node, use)
            if use is Use.PYTHON:
                return True
            if use is not Use.NOTHING and not isinstance(around, ast.stmt):
                self.pending.append((around, use))
        return False

    def _statement(self, around: ast.AST, node: ast.AST, use: Use) -> Use:
        """What the node around a value is; follows the names that get the value."""
        match around:
            case ast.IfExp(test=test) | ast.If(test=test) | ast.While(test=test):
                return Use.PYTHON if test is node else use
            case (
                ast.For(iter=each, target=target)
                | ast.comprehension(iter=each, target=target)
            ):
                if each is not node or use not in _ONE:
                    return Use.PYTHON
                self._follow(target, _ONE[use])
                return Use.NOTHING
            case ast.AugAssign(target=ast.Attribute()):
                return Use.PYTHON
            case ast.Return():
                self._return(around, use)
                return Use.NOTHING
            case ast.Assign(targets=targets):
                return self._assigned(targets, use)
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                return self._assigned([target], use)
            case ast.Return() | ast.Expr() | ast.Yield():
                return Use.NOTHING
        return self._part(around, node, use)

    def _part(self, around: ast.AST, node: ast.AST, use: Use) -> Use:
        """What a part of a larger expression makes of that."""
        above = self.source.parents.get(around)
        is_index = isinstance(above, ast.Subscript)
        match around:
            case ast.Subscript():
                return self._subscript(around, node, use)
            case ast.Slice():
                return self._sliced(around)
            case ast.Tuple() | ast.List() if is_index:
                return use if use is Use.TENSOR else Use.PYTHON
            case ast.Tuple() | ast.List() | ast.ListComp() | ast.GeneratorExp():
                return _MANY.get(use, use)
            case ast.Dict(values=kept):
                return _MANY.get(use, use) if node in kept else Use.PYTHON
            case ast.BinOp(op=ast.MatMult()) if use is Use.TENSOR:
                return Use.PYTHON
            case ast.BinOp() | ast.Starred():
                return use
        return self._operation(around, node, use)

    def _operation(self, around: ast.AST, node: ast.AST, use: Use) -> Use:
        match around:
            case ast.Call():
                return self._called(around, node, use)
            case ast.keyword():
                return self._called(self.source.parents[around], around, use)
            case ast.Attribute(attr=name):
                return _attribute(name, use)
            case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
                return Use.NOTHING
            case ast.Compare(ops=ops):
                contains = any(isinstance(op, ast.In | ast.NotIn) for op in ops)
                return use if use in _TENSORS and not contains else Use.PYTHON
            case ast.UnaryOp(op=op):
                return Use.PYTHON if isinstance(op, ast.Not) else use
        return Use.PYTHON

    def _subscript(self, around: ast.Subscript, node: ast.AST, use: Use) -> Use:
        if around.slice is node:
            return use if use is Use.TENSOR else Use.PYTHON
        is_one = isinstance(around.slice, ast.Constant | ast.UnaryOp)
        return _ONE.get(use, use) if is_one else use

    def _sliced(self, node: ast.AST) -> Use:
        """What `container[:number]` is: of a list, Python needs the number."""
        while not isinstance(node, ast.Subscript):
            node = self.source.parents[node]
        match node.value:
            case ast.Call(func=ast.Name()) | ast.List() | ast.ListComp():
                return Use.PYTHON
        return Use.TENSOR

    # -- calls -------------------------------------------------------------------------

    def _called(self, call: ast.AST, node: ast.AST, use: Use) -> Use:
        """What a call returns that gets the value, as an argument or as its owner."""
        assert isinstance(call, ast.Call)
        is_tensor = use in _TENSORS
        match call.func:
            case func if func is node:
                return use
            case ast.Name(name) if name in _OF_NUMBERS:
                return Use.NUMBER
            case ast.Name("len"):
                return Use.NUMBER if use is Use.TENSOR else Use.NOTHING
            case ast.Name(name) if name in _OF_LISTS:
                return use if use in _ONE else Use.PYTHON
            case ast.Name() | ast.Attribute(ast.Name("self")):
                if _BATCHED_LAYERS.search(self._made(call.func)):
                    return Use.PYTHON
                known = self._enter(call, node, use)
                return Use.TENSOR if known or is_tensor else Use.PYTHON
            case ast.Attribute(ast.Name("math"), name):
                is_captured = use is Use.NUMBER and name == "sqrt"
                return use if is_captured else Use.PYTHON
            case ast.Attribute(attr=name) if name in _BATCHED and is_tensor:
                return Use.PYTHON
            case ast.Attribute(attr=name) if name in _PARTS:
                return Use.TENSORS
            case ast.Attribute(ast.Name(owner), "append" | "extend"):
                return Use.NOTHING if self._is_local(call, owner) else Use.PYTHON
            case func if is_tensor or self._is_in_graph(func):
                return Use.TENSOR
        return Use.PYTHON

    def _is_in_graph(self, called: ast.expr) -> bool:
        """Whether a function or method takes a number without a value in Python."""
        if not isinstance(called, ast.Attribute):
            return False
        name = self.source.dotted(called)
        if name and _IN_GRAPHS.fullmatch(name):
            return not _OUTSIDE.match(name)
        return _TENSOR_METHODS.fullmatch(called.attr) is not None

    def _made(self, called: ast.expr) -> str:
        """What the class makes a layer of; empty text if that is not known."""
        return " ".join(
            ast.unparse(each.value)
            for each in ast.walk(self._around(called, ast.ClassDef))
            if isinstance(each, ast.Assign)
            and ast.unparse(each.targets[0]) == ast.unparse(called)
        )

    def _enter(self, call: ast.Call, node: ast.AST, use: Use) -> bool:
        """Follows an argument into the function of the file, if there is one."""
        name, owner = getattr(call.func, "id", ""), None
        if isinstance(call.func, ast.Attribute):
            name, owner = call.func.attr, self._around(call, ast.ClassDef)
        body = getattr(owner or self.source.tree, "body", ())
        for each in body:
            if isinstance(each, Definition) and each.name == name:
                names = [a.arg for a in (*each.args.posonlyargs, *each.args.args)]
                names = names[owner is not None :]
                if isinstance(node, ast.keyword):
                    names += [a.arg for a in each.args.kwonlyargs]
                    names = [n for n in names if n == node.arg]
                elif node in call.args:
                    names = names[call.args.index(node) :]
                if names:
                    self._follow_name(each, names[0], use)
                return bool(names)
        return False

    def _return(self, statement: ast.AST, use: Use) -> None:
        """Follows what a helper returns into its calls, as far as the file has them."""
        function = self._around(statement, _FUNCTIONS)
        name = getattr(function, "name", "")
        compiled = any(map(_compiles, getattr(function, "decorator_list", ())))
        if name == "forward" or compiled or (function, "return", use) in self.names:
            return
        self.names.add((function, "return", use))
        for each in ast.walk(self.source.tree):
            match each:
                case ast.Call(
                    ast.Name(called) | ast.Attribute(ast.Name("self"), called)
                ):
                    inside = self._around(each, _FUNCTIONS) is not self.source.tree
                    self.pending += [(each, use)] * (inside and called == name)

    # -- names -------------------------------------------------------------------------

    def _is_local(self, node: ast.AST, name: str, *, argument: bool = False) -> bool:
        """Whether a call makes the variable itself; `argument`: or gets it."""
        function = self._around(node, _FUNCTIONS)
        own = {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}
        if name in own:
            return argument
        return not any(
            isinstance(each, ast.Global | ast.Nonlocal) and name in each.names
            for each in ast.walk(function)
        ) and any(
            isinstance(each, ast.Name) and each.id == name
            for each in ast.walk(function)
            if isinstance(getattr(each, "ctx", None), ast.Store)
        )

    def _assigned(self, targets: list[ast.expr], use: Use) -> Use:
        for target in targets:
            match target:
                case ast.Attribute() if self._is_read(target):
                    return Use.PYTHON
                case ast.Subscript(value=ast.Attribute()):
                    return Use.PYTHON  # it changes what outlives the call
                case ast.Subscript(ast.Name(name), key):
                    is_text = isinstance(key, ast.Constant) and type(key.value) is str
                    if not self._is_local(target, name, argument=not is_text):
                        return Use.PYTHON
                case ast.Name(name) if not self._is_local(target, name, argument=True):
                    return Use.PYTHON
            self._follow(target, use)
        return Use.NOTHING

    def _is_read(self, attribute: ast.Attribute) -> bool:
        """Whether the function that stores it reads it too: that guards its value."""
        name, function = attribute.attr, self._around(attribute, _FUNCTIONS)
        return any(
            isinstance(each, ast.Attribute) and each.attr == name
            for each in ast.walk(function)
            if isinstance(getattr(each, "ctx", None), ast.Load)
        )

    def _around(self, node: ast.AST, kinds: object) -> ast.AST:
        around = (n for n in self.source.above(node) if isinstance(n, kinds))  # type: ignore[arg-type]
        return next(around, self.source.tree)

    def _follow(self, target: ast.AST, use: Use) -> None:
        use = _ONE.get(use, use) if hasattr(target, "elts") else use
        for each in ast.walk(target):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                self._follow_name(self._around(each, _FUNCTIONS), each.id, use)

    def _follow_name(self, function: ast.AST, name: str, use: Use) -> None:
        if (function, name, use) in self.names:
            return
        self.names.add((function, name, use))
        if use is Use.NUMBER and any(_has_methods(function, name)):
            return  # it is a tensor
        for each in ast.walk(function):
            if isinstance(each, ast.Name) and each.id == name:
                self.pending += [(each, use)] * isinstance(each.ctx, ast.Load)


def _compiles(decorator: ast.expr) -> bool:
    return "compile" in ast.unparse(decorator)


def _attribute(name: str, use: Use) -> Use:
    """What `value.name` is, or `value.name()`."""
    if use is not Use.TENSOR or name in _KNOWN:
        return Use.NOTHING
    return _OF_TENSORS.get(name, Use.TENSOR)


def _has_methods(function: ast.AST, name: str) -> Iterator[bool]:
    for each in ast.walk(function):
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            yield each.value.id == name
