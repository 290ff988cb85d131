"""Computes the kind of each expression from the kinds of the names at that point."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from torchproof.checking.static import kinds
from torchproof.checking.static.kinds import Kind, join, words
from torchproof.checking.static.program import Program
from torchproof.checking.static.source import Function, Source, walk

# Calls that return a fixed value while Dynamo traces.
_TRUE = {"is_compiling", "is_dynamo_compiling", "is_torchdynamo_compiling"}
_FALSE = words(
    "is_scripting is_tracing is_in_onnx_export is_torch_fx_proxy is_exporting"
    " is_torchdynamo_exporting is_jit_tracing"
)
_NUMBERS = ("int", "float", "len", "abs", "round", "min", "max", "sum", "pow", "divmod")
_PLAIN = words(
    "str repr isinstance hasattr getattr type range id list tuple bool callable"
    " issubclass format ord chr hash"
)


class Values:
    """The kinds of the names in scope, and of each node evaluated so far."""

    def __init__(
        self,
        function: Function,
        program: Program,
        arguments: Mapping[str, Kind],
        *,
        returned: Callable[[Function], Kind],
    ) -> None:
        self.function, self.program, self._returned = function, program, returned
        self.kinds: dict[ast.AST, Kind] = {}
        self.environment: dict[str, Kind] = {}
        looks, settings = _tensors(function), function.settings
        for parameter in function.parameters:
            name = parameter.arg
            kind = kinds.of_annotation(parameter.annotation)
            if kind is Kind.UNKNOWN and parameter.annotation is None:
                kind = arguments.get(name, Kind.UNKNOWN)
                if kind in (Kind.UNKNOWN, Kind.NONE) and name in looks:
                    kind = Kind.TENSOR
            if name in settings and kind.is_tensor:
                kind = Kind.PYTHON  # the default value outweighs the annotation
            self.environment[name] = kind

    def copy(self) -> dict[str, Kind]:
        return dict(self.environment)

    def merge(self, other: Mapping[str, Kind]) -> None:
        """Joins the environment of another path that reaches this point."""
        names = {**self.environment, **other}
        self.environment = {
            name: join(self.environment.get(name, kind), other.get(name, kind))
            for name, kind in names.items()
        }

    # -- names -------------------------------------------------------------------------

    def bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, _LISTS):
            self._unpack(target, value)
            return
        dotted = self.function.source.dotted(target)
        if dotted is not None:
            self.environment[dotted] = self.kinds.get(value, Kind.UNKNOWN)

    def _unpack(self, target: ast.Tuple | ast.List, value: ast.expr) -> None:
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(
            target.elts
        ):
            for each, element in zip(target.elts, value.elts, strict=True):
                self.bind(each, element)
            return
        inner = _element(self.kinds.get(value, Kind.UNKNOWN))
        for each in target.elts:
            starred = isinstance(each, ast.Starred)
            dotted = self.function.source.dotted(each.value if starred else each)  # type: ignore[attr-defined]
            if dotted is not None:
                self.environment[dotted] = Kind.UNKNOWN if starred else inner

    def bind_element(self, target: ast.expr, iterable: ast.expr) -> None:
        """Binds the variable of a loop to an element of the iterable."""
        source = self.function.source
        if isinstance(iterable, ast.Call):
            called = source.dotted(iterable.func)
            if called == "range" and isinstance(target, ast.Name):
                self.environment[target.id] = Kind.SIZE
                return
            if (
                called == "enumerate"
                and isinstance(target, ast.Tuple)
                and iterable.args
            ):
                self.forget(target)
                self.environment[source.dotted(target.elts[0]) or ""] = Kind.SIZE
                if len(target.elts) == 2:
                    self.bind_element(target.elts[1], iterable.args[0])
                return
            if called == "zip" and isinstance(target, ast.Tuple):
                for each, argument in zip(target.elts, iterable.args, strict=False):
                    self.bind_element(each, argument)
                return
        self.forget(target)
        dotted = source.dotted(target)
        if dotted is not None:
            kind = self.kinds.get(iterable, Kind.UNKNOWN)
            self.environment[dotted] = _element(kind)

    def forget(self, target: ast.expr) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self.environment[node.id] = Kind.UNKNOWN

    def update(self, node: ast.AugAssign) -> None:
        dotted = self.function.source.dotted(node.target)
        if dotted is not None:
            pair = (self.kinds.get(node.target), self.kinds.get(node.value))
            operands = [kind or Kind.UNKNOWN for kind in pair]
            self.environment[dotted] = _combined(operands[0], operands[1])

    def walruses(self, node: ast.AST) -> dict[str, Kind]:
        names = [n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr)]
        return {name: self.environment.get(name, Kind.UNKNOWN) for name in names}

    def narrow(self, test: ast.expr, *, holds: bool = True) -> None:
        """Applies what the test implies for names when it holds or does not hold."""
        self.environment |= _narrowed(test, self.function.source, holds=holds)

    # -- tests -------------------------------------------------------------------------

    def truth(self, test: ast.expr) -> bool | None:
        """The value of a test while Dynamo traces; None if it is unknown."""
        if isinstance(test, ast.Constant):
            return bool(test.value)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.truth(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            truths = [self.truth(operand) for operand in test.values]
            decides = isinstance(test.op, ast.Or)
            if decides in truths:
                return decides
            return None if None in truths else not decides
        if isinstance(test, ast.Call):
            dotted = self.function.source.dotted(test.func) or ""
            called = dotted.rpartition(".")[2]
            if called == "is_tracing" and not dotted.startswith("torch."):
                return True  # a library's own function, which also covers Dynamo
            return True if called in _TRUE else False if called in _FALSE else None
        if isinstance(test, ast.Name) and test.id not in self.environment:
            if test.id == "TYPE_CHECKING":
                return False
            value = self.function.source.constants.get(test.id)
            return value if isinstance(value, bool) else None
        return None

    # -- expressions -------------------------------------------------------------------

    def evaluate(self, node: ast.expr) -> Kind:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        kind: Kind = method(node) if method else Kind.UNKNOWN
        self.kinds[node] = kind
        return kind

    def _of(self, node: ast.AST) -> Kind:
        return self.kinds.get(node, Kind.UNKNOWN)

    def _constant(self, node: ast.Constant) -> Kind:
        if node.value is None:
            return Kind.NONE
        return Kind.SIZE if type(node.value) is int else Kind.PYTHON

    def _joinedstr(self, node: ast.JoinedStr) -> Kind:
        return Kind.PYTHON

    def _name(self, node: ast.Name) -> Kind:
        if node.id in self.environment:
            return self.environment[node.id]
        is_constant = node.id in self.function.source.constants
        return Kind.PYTHON if is_constant else Kind.UNKNOWN

    def _attribute(self, node: ast.Attribute) -> Kind:
        base = self._of(node.value)
        if base.is_tensor:
            return kinds.ATTRIBUTES.get(node.attr, Kind.UNKNOWN)
        if node.attr == "shape" and base is Kind.UNKNOWN:
            return Kind.SIZES  # in a forward, `.shape` belongs to a tensor or an array
        dotted = self.function.source.dotted(node)
        if dotted is not None and dotted in self.environment:
            return self.environment[dotted]
        owner = self.function.owner
        if owner and self.function.source.own(node):
            return self.program.attribute(owner, node.attr)
        if node.attr in ("weight", "bias") and base is Kind.LAYER:
            return Kind.TENSOR
        return Kind.PYTHON if base in (Kind.PYTHON, Kind.SIZE) else Kind.UNKNOWN

    def _subscript(self, node: ast.Subscript) -> Kind:
        base = self._of(node.value)
        if base.is_tensor:
            return base
        if base is Kind.UNKNOWN and self._of(node.slice) is Kind.MASK:
            return Kind.TENSOR
        if base in (Kind.TENSORS, Kind.SIZES) and isinstance(node.slice, ast.Slice):
            return base
        return _element(base)

    def _call(self, node: ast.Call) -> Kind:
        dotted = self.function.source.dotted(node.func)
        if isinstance(node.func, ast.Attribute):
            base = self._of(node.func.value)
            if base.is_tensor:
                return self._method(node, node.func.attr)
            if base is Kind.ARRAY:
                return Kind.ARRAY
        if self._of(node.func) is Kind.LAYER:
            return Kind.TENSOR
        if self._of(node.func) is Kind.RECURRENT:
            return Kind.TENSORS
        if dotted is None:
            return Kind.UNKNOWN
        if (kind := kinds.of_torch(dotted)) is not None:
            on_tensors = any(self._of(argument).is_tensor for argument in node.args)
            if dotted in _ARITHMETIC and not on_tensors:
                return Kind.UNKNOWN  # on Python numbers, tracing computes the result
            named = dotted.rpartition(".")[2]
            return self._method(node, named, 1) if kind is Kind.TENSOR else kind
        if dotted in _NUMBERS or dotted in _PLAIN:
            return self._builtin(dotted, node)
        if dotted.startswith(("numpy.", "np.")):
            return Kind.ARRAY
        return self._user_function(node)

    def _method(self, node: ast.Call, name: str, operands: int = 0) -> Kind:
        more = len(node.args) > operands or any(k.arg == "dim" for k in node.keywords)
        if name == "size" and more:
            return Kind.LENGTH
        if name in kinds.WITH_INDICES and more:
            # `torch.max(a, b)` compares two tensors, `torch.max(a, 1)` has a dimension.
            pair = operands and len(node.args) > 1 and self._of(node.args[1]).is_tensor
            return Kind.TENSOR if pair else Kind.TENSORS
        if name == "where":
            return (
                Kind.TENSOR if len(node.args) + len(node.keywords) > 1 else Kind.TENSORS
            )
        if name == "nonzero" and node.keywords:
            apart = self.truth(node.keywords[0].value)  # as_tuple
            return Kind.TENSOR if apart is False else Kind.TENSORS
        if name == "unique":
            return Kind.TENSOR if not node.keywords else Kind.UNKNOWN
        if operands:
            return Kind.TENSOR
        return kinds.of_method(name)

    def _builtin(self, name: str, node: ast.Call) -> Kind:
        arguments = [self._of(argument) for argument in node.args]
        if name in ("int", "bool") and arguments[:1] in (
            [Kind.LENGTH],
            [Kind.CONDITION],
        ):
            return arguments[0]  # stays a symbol
        if name in ("list", "tuple"):
            has_tensors = any(
                kind.is_tensor or kind is Kind.TENSORS for kind in arguments
            )
            return Kind.TENSORS if has_tensors else Kind.UNKNOWN
        if name in _PLAIN:
            return Kind.PYTHON
        if name == "len" and any(kind.is_tensor for kind in arguments):
            return Kind.LENGTH
        if name in ("abs", "sum", "max", "min", "pow", "round") and any(
            kind.is_tensor or kind is Kind.TENSORS for kind in arguments
        ):
            return Kind.TENSOR
        if name in ("int", "float") and any(kind.is_tensor for kind in arguments):
            return Kind.NUMBER
        return Kind.SIZE if name != "float" else Kind.PYTHON

    def _user_function(self, node: ast.Call) -> Kind:
        """What a function in the sources returns, by its annotation or its body."""
        callee = self.program.callee(node, self.function)
        if callee is None:
            return Kind.UNKNOWN
        if callee.node.returns is not None:
            return kinds.of_annotation(callee.node.returns)
        return self._returned(callee)

    def _binop(self, node: ast.BinOp) -> Kind:
        return _combined(self._of(node.left), self._of(node.right))

    def _unaryop(self, node: ast.UnaryOp) -> Kind:
        return Kind.PYTHON if isinstance(node.op, ast.Not) else self._of(node.operand)

    def _compare(self, node: ast.Compare) -> Kind:
        if not all(isinstance(op, _ORDERS) for op in node.ops):
            return Kind.PYTHON
        operands = [self._of(each) for each in (node.left, *node.comparators)]
        texts = [each for each in node.comparators if isinstance(each, ast.Constant)]
        if any(text.value is None or isinstance(text.value, str) for text in texts):
            return Kind.PYTHON
        if any(kind.is_tensor for kind in operands):
            return Kind.MASK
        if Kind.LENGTH in operands and all(kind.is_plain for kind in operands):
            return Kind.CONDITION
        return Kind.PYTHON if Kind.UNKNOWN not in operands else Kind.UNKNOWN

    def _boolop(self, node: ast.BoolOp) -> Kind:
        if self._of(node.values[-1]) is Kind.CONDITION:
            return Kind.CONDITION  # tracing decides the operands before it
        kind = Kind.NONE
        for each in node.values:
            kind = join(kind, self._of(each))
        return kind

    def _ifexp(self, node: ast.IfExp) -> Kind:
        truth = self.truth(node.test)
        if truth is not None:
            return self._of(node.body if truth else node.orelse)
        return join(self._of(node.body), self._of(node.orelse))

    def _tuple(self, node: ast.Tuple | ast.List) -> Kind:
        elements = [self._of(each) for each in node.elts]
        if elements and all(kind.is_tensor for kind in elements):
            return Kind.TENSORS
        if elements and all(kind in (Kind.SIZE, Kind.LENGTH) for kind in elements):
            return Kind.SIZES
        plain = elements and all(kind.is_plain for kind in elements)
        return Kind.PYTHON if plain else Kind.UNKNOWN

    _list = _tuple

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp) -> Kind:
        return Kind.TENSORS if self._of(node.elt).is_tensor else Kind.UNKNOWN

    _generatorexp = _listcomp

    def _namedexpr(self, node: ast.NamedExpr) -> Kind:
        return self._of(node.value)

    def _starred(self, node: ast.Starred) -> Kind:
        return Kind.UNKNOWN


_ARITHMETIC = words(
    "torch.add torch.sub torch.mul torch.div torch.ceil torch.floor torch.floor_divide"
    " torch.true_divide torch.remainder"
)
_LISTS = (ast.Tuple, ast.List)
_ORDERS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def _element(kind: Kind) -> Kind:
    """The kind of an element, by indexing or iteration."""
    if kind.is_tensor:
        return kind
    return {Kind.TENSORS: Kind.TENSOR, Kind.SIZES: Kind.LENGTH}.get(kind, Kind.UNKNOWN)


def _combined(left: Kind, right: Kind) -> Kind:
    """The kind of the result of an arithmetic operation."""
    if left is right and left in (Kind.MASK, Kind.SIZE, Kind.LENGTH, Kind.NUMBER):
        return left
    if left.is_tensor or right.is_tensor:
        return Kind.TENSOR
    if Kind.NUMBER in (left, right):
        return Kind.NUMBER
    if {left, right} == {Kind.SIZE, Kind.LENGTH}:
        return Kind.LENGTH
    if left.is_plain and right.is_plain:
        return Kind.PYTHON
    return left if left is right else Kind.UNKNOWN


_TENSOR_TESTS = ("torch.is_tensor", "torch.overrides.is_tensor_like")


def _narrowed(test: ast.expr, source: Source, *, holds: bool) -> dict[str, Kind]:
    """The names whose kind the test narrows, if it holds or if it does not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _narrowed(test.operand, source, holds=not holds)
    if isinstance(test, ast.BoolOp):
        narrowed_kinds: dict[str, Kind] = {}
        for operand in test.values:
            narrowed_kinds |= _narrowed(operand, source, holds=holds)
        if holds is isinstance(test.op, ast.And):
            return narrowed_kinds
        # Only one operand decides, and the source does not show which.
        return dict.fromkeys(narrowed_kinds, Kind.UNKNOWN)
    if not isinstance(test, ast.Call) or not test.args:
        return {}
    name, called = source.dotted(test.args[0]), source.dotted(test.func)
    if name is None:
        return {}
    if called in _TENSOR_TESTS:
        return {name: Kind.TENSOR if holds else Kind.UNKNOWN}
    if called != "isinstance" or len(test.args) != 2:
        return {}
    if holds:
        return {name: kinds.of_annotation(test.args[1])}
    return {name: Kind.UNKNOWN} if _names_tensor(test.args[1]) else {}


def _names_tensor(node: ast.expr) -> bool:
    return any("Tensor" in (_last_word(each) or "") for each in walk(node))


def _last_word(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


# Functions of torch whose first argument is not a tensor.
_MAKERS = words(
    "tensor zeros ones full empty rand randn arange eye randint linspace from_numpy"
    " as_tensor stack cat randperm concat logspace hstack vstack tril_indices"
    " triu_indices hann_window block_diag meshgrid broadcast_tensors einsum"
    " scalar_tensor normal fftfreq rfftfreq asarray frombuffer"
)
_ATTRIBUTES = ("shape", "ndim", "dtype", "device", "requires_grad")


def _tensors(function: Function) -> set[str]:
    """The names that the function uses as tensors."""
    nodes = list(walk(function.node))
    called = {node.func for node in nodes if isinstance(node, ast.Call)}
    plain = [n for n in nodes if isinstance(n, ast.Attribute) and n not in called]
    names = {name for node in nodes for name in _signs(node, function)}
    names |= {name for node in plain for name in _held(node)}
    # `config.dim` without a call is not an attribute of a tensor, so `config` is not a
    # tensor, although it has `config.device`.
    names -= {
        node.value.id
        for node in plain
        if isinstance(node.value, ast.Name) and not kinds.is_attribute(node.attr)
    }
    while more := {n for node in nodes for n in _behind(node, names)} - names:
        names |= more
    return names - {"self", "cls"}  # `self.norm` is a layer


def _held(node: ast.Attribute) -> Iterator[str]:
    """The `x` of `x.shape` and of other attributes of tensors."""
    if node.attr in _ATTRIBUTES and isinstance(node.value, ast.Name):
        yield node.value.id


def _signs(node: ast.AST, function: Function) -> Iterator[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        receiver = node.func.value
        if node.func.attr in kinds.TENSOR_ONLY and isinstance(receiver, ast.Name):
            yield receiver.id
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        if isinstance(node.slice, ast.Compare):  # x[x > 0]
            yield node.value.id
    elif isinstance(node, ast.Call) and node.args:
        first, dotted = node.args[0], function.source.dotted(node.func) or ""
        result = kinds.of_torch(dotted)
        gives = result in (Kind.TENSOR, Kind.MASK, Kind.TENSORS)
        if (
            gives
            and isinstance(first, ast.Name)
            and dotted.rpartition(".")[2] not in _MAKERS
        ):
            yield first.id


def _behind(node: ast.AST, tensors: set[str]) -> Iterator[str]:
    """The `x` of `y = x + 1` if y is a tensor: then x is one too."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.BinOp):
        return
    if not any(isinstance(t, ast.Name) and t.id in tensors for t in node.targets):
        return
    names = {n.id for n in walk(node.value) if isinstance(n, ast.Name)}
    plain = all(
        isinstance(n, ast.BinOp | ast.UnaryOp | ast.Name | ast.Constant | ast.operator)
        for n in walk(node.value)
    )
    if plain and len(names) == 1:
        yield from names
