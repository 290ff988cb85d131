"""What operations of torch and Python do: raise, lose gradients; syntax trees.

Everything here is decided by name. A name that is not listed counts as unknown, and
unknown never counts as harmless.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar, cast

import libcst as cst

from torchproof.checking import words

# Modules whose functions change nothing, except those named below.
_TORCH = ("torch", "torch.nn.functional", "nn.functional", "F", "functional")
NUMERIC = (*_TORCH, "math", "torch.special", "torch.linalg", "torch.fft")
BUILTINS = words(
    "abs all any bool callable dict divmod enumerate float format frozenset getattr"
    " hasattr id int isinstance issubclass len list max min pow range repr reversed"
    " round set slice sorted str sum tuple type zip"
)
# Elementwise: each element of the result depends on one element of each operand. All
# of these, with their gradients, are finite where every operand is 1.
ELEMENTWISE = words(
    "abs add addcmul atan atan2 bfloat16 bitwise_and bitwise_not bitwise_or bool ceil"
    " clamp clamp_max clamp_min clip clone contiguous cos cosh detach div divide double"
    " elu eq erf exp exp2 expm1 float floor full_like ge gelu gt half hardsigmoid"
    " hardswish hardtanh hypot int isclose isfinite isinf isnan isneginf isposinf le"
    " leaky_relu lerp log log10 log1p log2 logical_and logical_not logical_or"
    " logical_xor logsigmoid long lt masked_fill maximum minimum mish mul multiply"
    " nan_to_num ne neg negative ones_like pow reciprocal relu relu6 round rsqrt selu"
    " sigmoid sign silu sin sinh softplus softsign sqrt square sub subtract tan tanh"
    " tanhshrink to true_divide trunc type type_as where xlogy zeros_like"
)
# Not elementwise, but finite with their gradients where every element is 1.
_FINITE_AT_ONE = ELEMENTWISE | words(
    "addmm amax amin baddbmm bmm cummax cummin linear log_softmax logsumexp matmul max"
    " min mm outer prod softmax"
)
# The gradient of these is finite for any input: where a value is not selected, it is
# zero times something finite.
_ROBUST = words(
    "add sub neg clamp clamp_max clamp_min clip nan_to_num where masked_fill clone"
    " detach contiguous to float half bfloat16 double long int bool type type_as"
    " zeros_like ones_like full_like empty_like zeros ones full tensor arange finfo"
    " iinfo relu maximum minimum isinf isnan isfinite isneginf isposinf isclose eq ne"
    " lt le gt ge logical_and logical_or logical_not logical_xor all any size dim numel"
    " ndimension view view_as reshape reshape_as permute transpose t swapaxes movedim"
    " expand expand_as broadcast_to squeeze unsqueeze flatten unflatten ravel new_zeros"
    " new_ones new_full new_tensor sum mean cat concat stack chunk split unbind cumsum"
    " diag diagonal tril triu flip roll repeat tile narrow pad round floor ceil trunc"
    " sign argmax argmin count_nonzero is_tensor is_floating_point is_complex"
)
# A reduction without arguments gives a tensor of one element and no dimensions.
REDUCTIONS = words(
    "all any sum mean max min amax amin prod norm std var median count_nonzero argmax"
    " argmin nansum nanmean"
)
# They may raise where their arguments are not as expected.
_RAISING = words(
    "gather index_select index_add index_copy take take_along_dim scatter scatter_add"
    " embedding one_hot item tolist cholesky inv inverse solve svd eigh nonzero unique"
    " masked_select masked_scatter bincount floor_divide fmod remainder topk"
    " nll_loss cross_entropy repeat_interleave"
)
_FUNCTIONS = words(
    "arange cat concat cross_entropy eigh elu embedding empty_like finfo full full_like"
    " gelu hardsigmoid hardswish hardtanh iinfo inv is_tensor leaky_relu linear"
    " logsigmoid mish nll_loss one_hot ones ones_like pad relu6 selu silu softplus"
    " softsign stack tanhshrink tensor zeros zeros_like"
)
# Methods that change nothing, on tensors and on whatever else has them.
PURE_METHODS = (
    ELEMENTWISE | _FINITE_AT_ONE | _ROBUST | REDUCTIONS | _RAISING
) - _FUNCTIONS | words(
    "acos addcdiv aminmax argsort asin cpu cuda cumprod frac index_fill is_contiguous"
    " new_empty select sort unfold format join keys values items get"
)
# Operations that are worth compiling.
_HEAVY = words(
    "matmul mm bmm addmm baddbmm einsum linear conv1d conv2d conv3d softmax log_softmax"
    " scaled_dot_product_attention cross_entropy embedding layer_norm batch_norm svd"
)


def is_heavy(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.BinaryOperation):
        return isinstance(node.operator, cst.MatrixMultiply)
    name = dotted(node.func) if isinstance(node, cst.Call) else None
    return (name or "").rpartition(".")[2] in _HEAVY


def dotted(node: cst.CSTNode) -> str | None:
    """`a.b.c` as text; None for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return None if base is None else f"{base}.{node.attr.value}"
    return None


def called(call: cst.Call) -> tuple[str, bool]:
    """The last name of what is called, and whether it is a function of a module.

    Without a module it is a method of a value.
    """
    name = dotted(call.func) or ""
    module, _, last = name.rpartition(".")
    if module in NUMERIC:
        return last, True
    if isinstance(call.func, cst.Attribute):
        return call.func.attr.value, False
    return name, not isinstance(call.func, cst.Attribute)


def nodes(root: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and everything in it, in the order of the text."""
    yield root
    for child in children(root):
        yield from nodes(child)


@functools.lru_cache(maxsize=1 << 17)
def children(node: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """libcst visits a node anew each time that it is asked for them."""
    return node.children


N = TypeVar("N", bound=cst.CSTNode)
New = cst.BaseExpression | Callable[[cst.CSTNode], cst.BaseExpression]


class _Replacing(cst.CSTTransformer):
    def __init__(self, changes: Mapping[cst.CSTNode, New]) -> None:
        super().__init__()
        self._changes = changes

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> object:  # type: ignore[override]
        new = self._changes.get(original, updated)
        return new if isinstance(new, cst.CSTNode) else new(updated)


def replaced_in(root: N, changes: Mapping[cst.CSTNode, New]) -> N:
    """Code with expressions in it replaced; a function gets what is inside by then."""
    return cast("N", root.visit(_Replacing(changes))) if changes else root


def is_number(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.UnaryOperation):
        return is_number(node.expression)
    return isinstance(node, (cst.Integer, cst.Float))


def layer_calls(
    root: cst.CSTNode, own: Collection[str]
) -> dict[cst.CSTNode, cst.BaseExpression]:
    """The calls of layers, `self.f(x)` or `f(x)` by a name, and their arguments."""
    return {
        each: cst.Tuple([cst.Element(argument.value) for argument in each.args])
        for each in nodes(root)
        if isinstance(each, cst.Call)
        and (name := dotted(each.func)) is not None
        and (name.startswith("self.") or name in own)
    }


def hazard(root: cst.CSTNode) -> str | None:
    """Why an expression may raise where its condition does not hold."""
    for node in nodes(root):
        if isinstance(node, cst.BinaryOperation) and isinstance(
            node.operator, (cst.FloorDivide, cst.Modulo)
        ):
            right = node.right
            if not is_number(right) or _brief(right).strip("-0.") == "":
                return f"`{_brief(node)}` may divide by zero"
        if isinstance(node, cst.Subscript) and not _is_static(node):
            return f"the index of `{_brief(node)}` may be out of range"
        if isinstance(node, cst.Call):
            name, is_function = called(node)
            if name in _RAISING or (is_function and name in ("getattr", "dict")):
                return f"`{_brief(node)}` may raise"
    return None


def _is_static(node: cst.Subscript) -> bool:
    """Whether an index is made of slices, None, `...`, 0 and -1."""
    return all(_is_static_index(each.slice) for each in node.slice)


def _is_static_index(index: cst.BaseSlice) -> bool:
    if isinstance(index, cst.Slice):
        return True
    assert isinstance(index, cst.Index)
    value = index.value
    if isinstance(value, cst.Name):
        return value.value == "None"
    return isinstance(value, cst.Ellipsis) or _brief(value) in ("0", "-1")


def unsafe_operands(node: cst.CSTNode) -> list[cst.BaseExpression] | None:
    """The operands for which one operation can have an infinite gradient.

    Multiplied by the zero of a value that was not selected, that gives NaN. With 1 in
    place of these operands it is finite; None if even that is not known.
    """
    if isinstance(node, cst.BinaryOperation):
        if isinstance(node.operator, (cst.Add, cst.Subtract)):
            return []
        if isinstance(node.operator, (cst.BitAnd, cst.BitOr, cst.BitXor)):
            return []
        sides = [node.left, node.right]
        if isinstance(node.operator, (cst.Multiply, cst.Divide)) and is_number(
            sides[1]
        ):
            return []
        if isinstance(node.operator, cst.Multiply) and is_number(sides[0]):
            return []
        return [side for side in sides if not is_number(side)]
    if not isinstance(node, cst.Call):
        return []
    name, is_function = called(node)
    if name in _ROBUST or (is_function and name in BUILTINS):
        return []
    if name not in _FINITE_AT_ONE:
        return None
    operands = [each.value for each in node.args if each.keyword is None]
    if not is_function and isinstance(node.func, cst.Attribute):
        operands.insert(0, node.func.value)
    return [each for each in operands if not is_number(each)]


def _brief(node: cst.CSTNode) -> str:
    text = " ".join(cst.Module([]).code_for_node(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


brief = _brief
