"""Runs a program in float64, with the random numbers of its original dtypes.

Inside `float64_computation`, every operation takes and returns float64, whatever mix
of float16, bfloat16 and float32 the code asks for. Random operations run in the dtypes
that `DrawRecorder` recorded, so that the random stream is the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from torchproof.torch_private import TorchDispatchMode, trees

WIDER: dict[torch.dtype, torch.dtype] = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
Convert = Callable[[Any], Any]


class NoFloat64(Exception):
    """The program cannot run in float64; the message says why."""


@dataclass(frozen=True)
class Draw:
    """A random operation, with the dtypes of its tensors and `dtype` arguments."""

    operation: str
    types: tuple[torch.dtype, ...]


class DrawRecorder(TorchDispatchMode):
    """Records the random operations of the code inside, and changes nothing."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        parts = _in_parts(self, func, args, kwargs)
        if parts is not NotImplemented:
            return parts
        if _draws(func, args, kwargs):
            dtypes: list[torch.dtype] = []
            trees.mapped((args, kwargs), lambda leaf: _record_dtype(leaf, dtypes))
            self.draws.append(Draw(str(func), tuple(dtypes)))
        return func(*args, **kwargs)


@contextlib.contextmanager
def float64_computation(draws: Sequence[Draw]) -> Iterator[None]:
    """Runs the code inside in float64; `draws` are those of its original run."""
    mode = _DoublePrecision(draws)
    with (
        torch.compiler.set_stance("force_eager"),
        sdpa_kernel(SDPBackend.MATH),  # fused kernels do not support float64
        _MixedTypes(),
        mode,
    ):
        yield
    if mode.remaining:
        raise NoFloat64("it draws fewer random numbers in float64")


class _DoublePrecision(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, draws: Sequence[Draw]) -> None:
        super().__init__()
        self.remaining = list(reversed(draws))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        parts = _in_parts(self, func, args, kwargs)
        if parts is not NotImplemented:
            return parts
        if _draws(func, args, kwargs):
            return self._draw(func, args, kwargs)
        if func is torch.ops.aten.view.dtype and args[0].is_floating_point():
            raise NoFloat64("it reads the bits of floating-point numbers")
        return _run(func, args, kwargs, convert=wider)

    def _draw(self, func: Any, args: Any, kwargs: Any) -> Any:
        drawn = self.remaining.pop() if self.remaining else None
        if drawn is None or drawn.operation != str(func):
            raise NoFloat64("it draws random numbers in another order in float64")
        types = iter(drawn.types)
        if func is torch.ops.aten.native_dropout.default:
            return _dropout(func, *args, kind=drawn.types[0])
        return _run(func, args, kwargs, convert=lambda leaf: _typed(leaf, types))


class _MixedTypes(TorchFunctionMode):
    """Retries in float64: some functions check dtypes before they dispatch."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            dtypes: list[torch.dtype] = []
            trees.mapped((args, kwargs), lambda leaf: _record_dtype(leaf, dtypes))
            if not WIDER.keys() & set(dtypes):
                raise
        args, kwargs = trees.mapped((args, kwargs), wider)
        return func(*args, **kwargs)


# -- one operation ---------------------------------------------------------------------


def _run(func: Any, args: Any, kwargs: Any, *, convert: Convert) -> Any:
    """Runs an operation on converted arguments, with results in float64.

    A view must share the memory of its argument, which is therefore not converted. An
    argument that is written to is converted, and the result copied back in its dtype.
    """
    stand_ins: list[tuple[torch.Tensor, torch.Tensor]] = []

    def write(leaf: Any) -> Any:
        other = convert(leaf)
        if isinstance(leaf, torch.Tensor) and other is not leaf:
            stand_ins.append((leaf, other))
        return other

    def argument(declared: Any, value: Any) -> Any:
        alias = declared.alias_info if declared is not None else None
        if alias is None:
            return trees.mapped(value, convert)
        return trees.mapped(value, write) if alias.is_write else value

    schema = getattr(func, "_schema", None)
    declared = list(schema.arguments) if schema is not None else []
    by_name = {item.name: item for item in declared}
    declared += [None] * (len(args) - len(declared))
    result = func(
        *(argument(item, value) for item, value in zip(declared, args, strict=False)),
        **{name: argument(by_name.get(name), kwargs[name]) for name in kwargs},
    )
    for original, other in stand_ins:
        original.copy_(other)
    if stand_ins:
        back = {id(other): original for original, other in stand_ins}
        return trees.mapped(result, lambda leaf: back.get(id(leaf), leaf))
    shares = schema is not None and any(item.alias_info for item in schema.returns)
    return result if shares else trees.mapped(result, wider)


def _dropout(
    func: Any, values: Any, probability: float, train: Any, *, kind: torch.dtype
) -> Any:
    """Draws the mask in the dtype `kind` and applies it in float64."""
    _, mask = func(torch.ones_like(values, dtype=kind), probability, train)
    scale = 0.0 if probability == 1 else 1 / (1 - probability)
    return wider(values) * mask * scale, mask


def _in_parts(mode: TorchDispatchMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Decomposes composite operations, which only `inference_mode` dispatches whole."""
    if not torch.is_inference_mode_enabled() or not hasattr(func, "decompose"):
        return NotImplemented
    with mode:
        return func.decompose(*args, **kwargs)


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation draws random numbers; attention without dropout does not."""
    if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
        return False
    declared = func._schema.arguments
    arguments = {item.name: item.default_value for item in declared}
    arguments |= (
        dict(zip((item.name for item in declared), args, strict=False)) | kwargs
    )
    return not any(
        arguments.get(name, True) in (0, False)
        for name in ("dropout_p", "dropout", "train", "training")
    )


def wider(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.to(WIDER[leaf.dtype]) if leaf.dtype in WIDER else leaf
    return WIDER.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf


def _typed(leaf: Any, types: Iterator[torch.dtype]) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.to(next(types))
    return next(types) if isinstance(leaf, torch.dtype) else leaf


def _record_dtype(leaf: Any, dtypes: list[torch.dtype]) -> Any:
    if isinstance(leaf, torch.Tensor):
        dtypes.append(leaf.dtype)
    elif isinstance(leaf, torch.dtype):
        dtypes.append(leaf)
    return leaf
