"""Infers which names of a compiled function hold tensors from how they are used."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchproof.checking.static import kinds
from torchproof.checking.static.kinds import Kind, words
from torchproof.checking.static.source import Function, walk

# Functions of torch whose first argument is not a tensor.
_MAKERS = words(
    "tensor zeros ones full empty rand randn arange eye randint linspace from_numpy"
    " as_tensor stack cat randperm concat logspace hstack vstack tril_indices"
    " triu_indices hann_window block_diag meshgrid broadcast_tensors einsum"
    " scalar_tensor normal fftfreq rfftfreq asarray frombuffer"
)
_ATTRIBUTES = ("shape", "ndim", "dtype", "device", "requires_grad")


def tensors(function: Function) -> set[str]:
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
