"""Calls that a graph cannot contain: the clock, files, C code, autograd."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchproof.checking.static.flow import Flow
from torchproof.checking.static.kinds import Kind
from torchproof.checking.static.patterns.pattern import (
    Pattern,
    PatternMatch,
    shorten,
    splits,
)

_PASS = "do it outside the compiled function and pass the result in as an argument"
_CLOCK = re.compile(
    r"time\.(?:time|perf_counter|monotonic|process_time|sleep|strftime)(?:_ns)?"
    r"|datetime\.(?:datetime\.(?:now|utcnow|today)|date\.today)"
)
_FILES = re.compile(
    r"open|os\.(?:path\.(?:exists|isfile|isdir)|makedirs|mkdir|listdir|remove|getpid)"
    r"|glob\.glob|shutil\.\w+|tempfile\.\w+|torch\.(?:save|load)|gc\.collect"
    r"|socket\.\w+|subprocess\.\w+|importlib\.import_module|uuid\.uuid[14]"
    r"|threading\.(?:Thread|current_thread)|os\.environ\.(?:update|setdefault|pop)"
)
_RANDOM = re.compile(
    r"random\.(?:choice|choices|gauss|normalvariate)|secrets\.\w+"
    r"|torch\.(?:manual_seed|get_rng_state|set_rng_state|Generator|random\.fork_rng)"
)
# Traced from torch 2.14 on.
_RANDOM_ONCE = re.compile(r"random\.(?:random|shuffle|sample|seed)")


class OutsideWorld(Pattern):
    """The clock, files, processes, the environment and random generators."""

    code = "GB115"
    kind = "graph_break"
    nodes = (ast.Call, ast.Subscript)
    shown_by = ("GB105", "GB111", "GB115", "GB117")

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Call | ast.Subscript)
        if isinstance(node, ast.Subscript):
            written = not isinstance(node.ctx, ast.Load)
            if written and at.dotted(node.value) == "os.environ":
                yield self._match(node, at, "writes to the environment", _PASS)
            return
        dotted = at.dotted(node.func) or ""
        if _CLOCK.fullmatch(dotted):
            fix = "time the compiled call from outside; torch.profiler shows the inside"
            yield self._match(node, at, "reads the clock", fix)
        elif _FILES.fullmatch(dotted):
            yield self._match(node, at, "reaches outside the tensor program", _PASS)
        elif _RANDOM.fullmatch(dotted) or _RANDOM_ONCE.fullmatch(dotted):
            since = " (torch 2.14 does)" if _RANDOM_ONCE.fullmatch(dotted) else ""
            what = f"uses a random generator that tracing does not follow{since}"
            fix = f"draw with torch.rand or random.uniform, or {_PASS}"
            yield self._match(node, at, what, fix)

    def _match(self, node: ast.expr, at: Flow, what: str, fix: str) -> PatternMatch:
        return splits(node, at, cause=f"{{}} {what}", fix=fix)


_UNTRACED = re.compile(
    r"json\.(?:dumps?|loads?)|hashlib\.\w+|zlib\.\w+|bisect\.\w+|pickle\.\w+"
    r"|base64\.\w+|unicodedata\.\w+|inspect\.stack|(?:np|numpy)\.interp"
    r"|torch\.nn\.utils\.rnn\.(?:pack_padded_sequence|pad_packed_sequence)"
)
_TOKENIZER = re.compile(r"(?:self\.|\w+\.)?_?(?:\w+_)?tokenizer(?:\.(\w+))?")
_LOOKUPS = re.compile(
    r"encode\w*|decode|batch_\w+|tokenize|convert_\w+|get_vocab|apply_chat_template"
    r"|id_of|token_to_id|id_to_token|pad|__call__"
)


class UntraceableCall(Pattern):
    """Functions written in C, and calls of a tokenizer."""

    code = "GB105"
    kind = "graph_break"
    nodes = (ast.Call,)
    shown_by = ("GB103", "GB105", "GB115", "GB117", "GB199")

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Call)
        dotted = at.dotted(node.func) or ""
        if _UNTRACED.fullmatch(dotted):
            cause = "{} calls into code that is not Python, which tracing cannot follow"
            yield splits(node, at, cause=cause, fix=_PASS)
        elif _asks_tokenizer(dotted) and at.program.callee(node, at.function) is None:
            yield splits(
                node,
                at,
                cause="{} does the tokenizer's work in each call, in code that tracing"
                " cannot follow",
                fix="look the id up once, in __init__ or before the compiled call, and"
                " store it as a Python int",
            )


def _asks_tokenizer(dotted: str) -> bool:
    match = _TOKENIZER.fullmatch(dotted)
    return match is not None and (
        match[1] is None or bool(_LOOKUPS.fullmatch(match[1]))
    )


class Recurrent(Pattern):
    """nn.LSTM, nn.GRU and nn.RNN."""

    code = "GB108"
    kind = "graph_break"
    nodes = (ast.Call,)

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Call)
        if at.kind(node.func) is Kind.RECURRENT:
            yield splits(
                node,
                at,
                cause="{} calls a recurrent module, which tracing leaves out, with the"
                " whole function around it",
                fix="compile the layers before and after it, and call it uncompiled"
                " between them; or set torch._dynamo.config.allow_rnn = True"
                " (experimental, unrolls the sequence)",
            )


class DeepCopy(Pattern):
    """copy.deepcopy of a tensor."""

    code = "GB109"
    kind = "graph_break"
    nodes = (ast.Call,)
    shown_by = ("GB105", "GB109")

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Call)
        if at.dotted(node.func) != "copy.deepcopy" or not node.args:
            return
        kind = at.kind(node.args[0])
        if kind.is_tensor or kind is Kind.TENSORS:
            cause = "{} copies a tensor with its storage, which a graph cannot describe"
            yield splits(
                node, at, cause=cause, fix="use x.clone(), or x.detach().clone()"
            )


class Autograd(Pattern):
    """backward() and autograd.grad."""

    code = "GB110"
    kind = "graph_break"
    nodes = (ast.Call,)

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Call)
        dotted = at.dotted(node.func) or ""
        runs_autograd = dotted in ("torch.autograd.grad", "torch.autograd.backward")
        if isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            on_tensor = at.kind(node.func.value).is_tensor
            runs_autograd |= on_tensor or dotted.rpartition(".")[0].endswith("loss")
        if runs_autograd:
            yield splits(
                node,
                at,
                cause="{} runs autograd inside the region that is being traced",
                fix="compile only the forward and call backward() outside: torch"
                " compiles the backward with the forward; for gradients as values use"
                " torch.func.grad",
            )


_INTERNALS = {"requires_grad_", "retain_grad", "resize_"}
_PARAMETERS = ("torch.nn.Parameter", "torch.nn.parameter.Parameter")


class TensorInternals(Pattern):
    """requires_grad_(), retain_grad(), `.data =` and parameters created in forward."""

    code = "GB116"
    kind = "graph_break"
    nodes = (ast.Call, ast.Assign)
    shown_by = ("GB105", "GB116", "GB199")

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Call | ast.Assign)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if _is_data(target, at):
                    fix = "copy in place: x.copy_(y), under torch.no_grad()"
                    yield self._match(node, at, fix)
            return
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in _INTERNALS:
            if at.kind(called.value).is_tensor:
                fix = "do it before you pass the tensor to the compiled function"
                yield self._match(node, at, fix)
        elif at.dotted(called) in _PARAMETERS:
            yield self._match(node, at, "create the parameter in __init__")

    def _match(self, node: ast.expr | ast.stmt, at: Flow, fix: str) -> PatternMatch:
        cause = "{} works on the tensor itself rather than its values"
        return splits(node, at, cause=cause, fix=fix)


def _is_data(target: ast.expr, at: Flow) -> bool:
    if not isinstance(target, ast.Attribute) or target.attr != "data":
        return False
    name = at.dotted(target.value) or ""
    return at.values.environment.get(name, Kind.UNKNOWN).is_tensor


class DeviceContext(Pattern):
    """`with torch.device(...)`."""

    code = "GB111"
    kind = "graph_break"
    nodes = (ast.With,)
    shown_by = ("GB111", "GB115", "GB199")

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.With)
        for item in node.items:
            context = item.context_expr
            if (
                isinstance(context, ast.Call)
                and at.dotted(context.func) == "torch.device"
            ):
                yield splits(
                    context,
                    at,
                    cause="{} as a context manager cannot be entered while tracing, and"
                    " the whole function is left out",
                    fix="pass device= to each call that creates a tensor",
                )


class FrozenEnvironment(Pattern):
    """A read of the environment: compiled code keeps the value it had at tracing."""

    code = "NM411"
    kind = "stale_state"
    severity = "low"
    nodes = (ast.Call, ast.Subscript, ast.Compare)
    calls = 2

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        if not _reads_environment(node, at):
            return
        assert isinstance(node, ast.expr)
        text = shorten(at.text(node))
        yield PatternMatch(
            node,
            f"{at.function.name} would keep the value that `{text}` had at trace time",
            "nothing checks an environment variable when compiled code runs: a later"
            " change has no effect",
            "read it before the compiled call and pass the value as an argument",
        )


def _reads_environment(node: ast.AST, at: Flow) -> bool:
    if isinstance(node, ast.Call):
        return at.dotted(node.func) in ("os.environ.get", "os.getenv")
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load) and at.dotted(node.value) == "os.environ"
    assert isinstance(node, ast.Compare)
    inside = isinstance(node.ops[0], ast.In | ast.NotIn)
    return inside and at.dotted(node.comparators[0]) == "os.environ"


class NumpyRandom(Pattern):
    """numpy.random: compiled code draws from torch instead, or breaks the graph."""

    code = "NM413"
    kind = "stale_state"
    nodes = (ast.Call,)
    shown_by = ("NM413", "NM419", "NM404", "GB101", "GB105", "GB115")

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Call)
        dotted = at.dotted(node.func) or ""
        if not dotted.startswith(("np.random.", "numpy.random.")):
            return
        text = shorten(at.text(node))
        yield PatternMatch(
            node,
            f"`{text}` would draw from torch instead of numpy, or cause a graph break"
            f" in {at.function.name}",
            "tracing replaces numpy by torch, so numpy's seed has no effect; what it"
            " cannot replace splits the graph",
            "draw with torch.rand, torch.randn or torch.randint, or pass the numbers"
            " as an argument",
        )
