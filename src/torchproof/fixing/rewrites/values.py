"""What rewrites ask about source: full names, kinds of values, and side effects."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import libcst as cst

from torchproof.checking import Flow, Kind, Program, Source, Unreadable, words
from torchproof.fixing.rewrites.operators import (
    BUILTINS,
    NUMERIC,
    PURE_METHODS,
    brief,
    dotted,
    nodes,
)
from torchproof.fixing.rewrites.site import File, Refused, Site

Span = tuple[int, int, int, int]  # line, column, last line, last column; in characters

_RANDOM = words(
    "rand randn randint randperm rand_like randn_like randint_like normal bernoulli"
    " multinomial poisson dropout dropout1d dropout2d dropout3d alpha_dropout"
    " feature_dropout feature_alpha_dropout gumbel_softmax rrelu"
    " scaled_dot_product_attention fractional_max_pool2d fractional_max_pool3d"
)
# Functions and methods whose result depends on where and when they are called, or that
# change more than their result.
_EFFECTS = words(
    "manual_seed seed save load compile set_default_dtype set_default_device"
    " set_grad_enabled set_num_threads backward register_hook retain_grad"
    " record_stream resize resize_as share_memory batch_norm embedding_bag"
    " register_post_accumulate_grad_hook module_load as_subclass data_ptr new tofile"
)
# Functions of torch's modules that only tell something.
_ASKS = ("is_", "are_", "can_", "get_", "has_", "memory_", "max_memory_", "current_")


class Values:
    """The kinds of the values in one function, by the source."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._kinds = _kinds_at(site.file, site.line)

    def kind(self, node: cst.CSTNode) -> Kind:
        at = self.site.file.positions.get(node)
        if at is None:  # new code, in which names mean the same
            return _named_at(self.site.file, self.site.line).get(
                dotted(node) or "", Kind.UNKNOWN
            )
        span = (at.start.line, at.start.column, at.end.line, at.end.column)
        return self._kinds.get(span, Kind.UNKNOWN)

    def is_tensor(self, node: cst.CSTNode) -> bool:
        return self.kind(node).is_tensor

    def dotted(self, node: cst.CSTNode | None) -> str:
        """`torch.nn.functional.relu` for `F.relu`; empty if it is no dotted name."""
        first, dot, rest = ((node and dotted(node)) or "").partition(".")
        return f"{_source(self.site.file).names.get(first, first)}{dot}{rest}"

    def is_pure(self, root: cst.CSTNode) -> bool:
        return self.effect(root) is None

    def effect(self, root: cst.CSTNode) -> str | None:
        """Why evaluating an expression may change something or draw random numbers."""
        for node in nodes(root):
            if isinstance(node, (cst.Await, cst.Yield, cst.NamedExpr, cst.Lambda)):
                return f"`{brief(node)}` is more than a value"
            if isinstance(node, cst.Call) and (why := self.effect_of_call(node)):
                return why
        return None

    def effect_of_call(self, call: cst.Call) -> str | None:
        """Why a call may do more than compute a value, apart from its arguments."""
        name, function = self.dotted(call.func), call.func
        module, _, last = name.rpartition(".")
        is_method = isinstance(function, cst.Attribute)
        if isinstance(function, cst.Attribute):
            last = function.attr.value
        written = brief(function)
        if last in _RANDOM or "random" in module:
            return f"`{written}` draws random numbers"
        if last in _EFFECTS or (last.endswith("_") and not last.startswith("__")):
            return f"`{written}` changes something"
        for argument in call.args:
            keyword = argument.keyword.value if argument.keyword else ""
            if keyword in ("out", "inplace") or argument.star == "**":
                return f"`{brief(call)}` may write to one of its arguments"
        if name in BUILTINS or module in (*NUMERIC, "numpy", "np", "operator"):
            return None
        if module.startswith("torch.") and last.startswith(_ASKS):
            return None
        is_dropped = isinstance(self.site.parent(call), cst.Expr)
        if is_method and not is_dropped:
            assert isinstance(function, cst.Attribute)
            if last in PURE_METHODS or self.is_tensor(function.value):
                return None
        return f"`{written}` may have side effects"


@functools.lru_cache(maxsize=4)
def _source(file: File) -> Source:
    try:
        return Source.parse(Path(file.path), file.text)
    except Unreadable as error:
        raise Refused(str(error)) from None


@functools.lru_cache(maxsize=4)
def _program(file: File) -> Program:
    return Program([_source(file)])


@functools.lru_cache(maxsize=16)
def _named_at(file: File, line: int) -> Mapping[str, Kind]:
    """The kinds of the names in the functions around a line, where each has one."""
    found: dict[str, Kind] = {}
    for node, at in file.positions.items():
        if isinstance(node, (cst.Name, cst.Attribute)) and (name := dotted(node)):
            span = (at.start.line, at.start.column, at.end.line, at.end.column)
            kind = _kinds_at(file, line).get(span)
            if kind is not None:
                is_same = found.get(name, kind) is kind
                found[name] = kind if is_same else Kind.UNKNOWN
    return found


@functools.lru_cache(maxsize=16)
def _kinds_at(file: File, line: int) -> Mapping[Span, Kind]:
    """The kinds of the expressions in the functions around a line.

    An inner function is read again on its own: around it, its parameters are unknown.
    """
    source = _source(file)
    around = [
        f
        for f in source.functions.values()
        if f.node.lineno <= line <= (f.node.end_lineno or f.node.lineno)
    ]
    found: dict[Span, Kind] = {}
    for function in sorted(around, key=lambda f: f.node.lineno):
        settings = dict.fromkeys(function.settings, Kind.PYTHON)
        program = _program(file)
        flow = Flow(function, program, arguments=settings, look=lambda *_: None)
        flow.run()
        for node, kind in flow.values.kinds.items():
            if hasattr(node, "lineno"):
                span = _span(node, source)
                if found.get(span, Kind.UNKNOWN) is Kind.UNKNOWN:
                    found[span] = kind
    return found


def _span(node: object, source: Source) -> Span:
    first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
    start, end = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
    lines = source.lines
    return (
        first,
        len(lines[first - 1].encode()[:start].decode(errors="replace")),
        last,
        len(lines[last - 1].encode()[:end].decode(errors="replace")),
    )


TENSOR_METHODS = words(
    "any all max min amax amin sum mean item tolist isnan isinf isfinite abs norm"
    " eq ne lt le gt ge numel size dim float double int long bool cpu detach nonzero"
    " unique argmax argmin std var view reshape flatten squeeze unsqueeze"
    " logical_not is_floating_point is_complex to"
)
