"""GB1xx: graph breaks at calls that Dynamo does not trace."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.breaks import (
    BreakGroup,
    GraphBreak,
    is_of_container,
    move_out,
)
from torchproof.checking.rules.rule import Fixed, Match, shorten
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.kinds import Kind, words
from torchproof.checking.static.line_facts import is_aside, nodes_of
from torchproof.checking.static.source import walk
from torchproof.records import Setting, Severity, Status, module_of, tree_of

# Calls that torch does not trace, whatever the function does.
_CALLS = words(
    "GB0007 GB0008 GB0009 GB0059 GB0142 GB0147 GB0148 GB0156 GB0177 GB0178 GB0262"
)
_NO_TENSOR = "GB0208"  # a function of torch that returns none

# Modules whose functions have effects outside the tensor program.
_OUTSIDE = words(
    "time datetime os posix nt io _io open pathlib tempfile shutil glob socket"
    " subprocess threading _thread multiprocessing queue uuid secrets random importlib"
    " __import__ input sqlite3 psutil resource signal getpass platform"
)


_WRITES = words(
    "print pprint.pprint pprint.pp warnings.warn sys.stdout.write sys.stderr.write"
    " tqdm.write"
)
_LEVELS = words(
    "debug info warning warn error critical exception log warning_once info_once fatal"
)
_LOGGER = re.compile(r"(?:self\.|cls\.|\w+\.)*_?log(?:ger|ging)?", re.IGNORECASE)
_CALLED = re.compile(r"[^(]*\b(?:print|pprint|warn|write)\(")
_OUTPUT = re.compile(r"\bprint\b|logg(ing|er)|\bwarn|sys\.std(out|err)|TextIO|tqdm")
# A print with arguments with which torch can move it behind the graph.
_PRINT = re.compile(
    r"builtin print \[(?:<class '[\w.]+\.(?:Tensor|Constant|StringFormat)Variable'>"
    r"(?:, )?)*\] False"
)
_BARS = ("tqdm.tqdm", "tqdm.trange", "tqdm.auto.tqdm", "tqdm.auto.trange")
_SWITCH = re.compile(r"debug|verbose", re.IGNORECASE)


_TIMER = re.compile(
    r"(?<![\w.])(?:time\.)?(?:time|perf_counter|monotonic|process_time)(?:_ns)?\(\)"
)
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
_GENERATOR = re.compile(
    r"random\.seed|torch\.(?:manual_seed|\w+_rng_state|Generator|random\.fork_rng)"
)
# Traced from torch 2.14 on.
_RANDOM_ONCE = re.compile(r"random\.(?:random|shuffle|sample|seed)")


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


def _callee(group: BreakGroup) -> str:
    """The function that Dynamo does not call, by torch's name for it."""
    text = f"{group.reason.explanation} {group.reason.context}"
    named = re.search(r"module: ([\w.]+|<unknown module>), qualname: ([\w.<>]+)", text)
    if named:
        return named[2] if named[1].startswith("<") else f"{named[1]}.{named[2]}"
    quoted = re.search(r"(?:function|builtin operator|builtin) `?([\w.]+)`?", text)
    return quoted[1] if quoted else ""


class OutputCall(GraphBreak):
    """print, logging, warnings or a progress bar is used in a compiled region.

    ## Why
    Output must happen between two operations, so the graph ends there.

    ## Bad
        print("mean", h.mean())

    ## Good
        if not torch.compiler.is_compiling():
            print("mean", h.mean())

    ## Fix safety
    The values are the same. The output disappears, comes later, or appears once while
    tracing.
    """

    code = "GB104"
    causes = words("GB0291 GB0296")
    cause_text = "`{at.expression}` writes output in the middle of the region"
    nodes = (ast.Call,)
    shown_by = ("GB104", "GB105", "GB117")
    rewrites = (
        "effects.in_graph",
        "effects.skip_while_compiling",
    )
    settings = (
        Setting("dynamo.reorderable_logging_functions", "builtins.print"),
        Setting("dynamo.reorderable_logging_functions", "warnings.warn", "warnings"),
    )

    def matches(self, group: BreakGroup) -> bool:
        named = f"{group.reason.type} {group.reason.context}"
        is_output = _CALLED.match(group.expression) or _OUTPUT.search(named)
        is_call = group.reason.gb_id in _CALLS and is_output is not None
        return is_call or super().matches(group)

    def helpful(self, group: BreakGroup) -> Iterator[Setting]:
        """The one that moves output behind the graph, or drops a library's log."""
        frame, call = group.frame, re.match(r"[A-Za-z_][\w.]*(?=\()", group.expression)
        if frame is None or call is None:
            return
        if _PRINT.fullmatch(group.reason.context):
            yield self.settings[0]
        if re.fullmatch(r"warnings\.warn\([^,=]*\)", group.expression):
            yield self.settings[1]
        module = module_of(frame.file) if group.package else None
        if module and _logs(call[0]) and _is_global(frame.file, call[0]):
            name = f"{module}.{call[0]}"
            yield Setting("dynamo.ignore_logging_functions", name, module)

    def change(self, group: BreakGroup) -> str:
        what = f"`{shorten(_written(group), group.width)}`"
        if group.expression.startswith("with "):
            return "write it after the compiled call, from what the call returns"
        if group.line.is_readable and not group.line.is_unused:
            return f"do {what} after the compiled call, with what it needs returned"
        return f"put {what} under `if not torch.compiler.is_compiling():`"

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call)
        if not _is_output(node, at) or _is_switched(at):
            return
        # Under a condition, the program may never reach it.
        yield Match(node, severity="low" if at.conditions else None)


def _written(group: BreakGroup) -> str:
    """The statement that writes, of a line that has several."""
    code = group.frame.code if group.frame else ""
    calls = [n for n in nodes_of(code) if isinstance(n, ast.Expr)]
    for call in calls if ";" in code else ():
        text = ast.get_source_segment(code, call) or ""
        if _CALLED.match(text) or _logs(text.partition("(")[0]):
            return text
    return group.expression


def _logs(called: str) -> bool:
    owner, _, name = called.rpartition(".")
    return name in _LEVELS and _LOGGER.fullmatch(owner) is not None


def _is_output(node: ast.Call, at: Flow) -> bool:
    dotted = at.dotted(node.func) or ""
    if dotted in _WRITES:
        return not any(k.arg == "file" for k in node.keywords)
    if dotted in _BARS:
        return True
    return isinstance(node.func, ast.Attribute) and _logs(dotted)


def _is_switched(at: Flow) -> bool:
    """Whether a debug or verbose switch guards this code."""
    for condition in at.conditions:
        for node in walk(condition):
            name = getattr(node, "attr", getattr(node, "id", ""))
            if isinstance(name, str) and _SWITCH.search(name):
                return True
    return False


def _is_global(file: str, name: str) -> bool:
    """Whether a file binds the name when it is imported."""
    root = name.partition(".")[0]
    for node in tree_of(file).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if root in map(ast.unparse, targets):
            return True
    return False


class OutsideWorld(GraphBreak):
    """A region uses time, files, environment, imports, locks or random generators.

    ## Why
    A graph holds tensor operations only. A value from outside, such as the time, would
    become a constant of the graph.

    ## Bad
        started = time.time()        # in the compiled function

    ## Good
        started = time.time()        # around the compiled call, or passed in

    ## Fix safety
    The call happens at another time: once per compiled call instead of once per use.
    """

    code = "GB115"
    fixed = (Fixed("2.14.1", "`random.random()`", r"\brandom\.random\("),)
    causes = words("GB0022 GB0069 GB7650")
    nodes = (ast.Call, ast.Subscript)
    shown_by = ("GB105", "GB111", "GB115", "GB117")
    rewrites = ("effects.in_graph", "contexts.skip")

    def matches(self, group: BreakGroup) -> bool:
        if super().matches(group) or "(Generator)" in group.reason.context:
            return True
        callee = _callee(group)
        if re.search(r"seed|rng", f"{callee} {group.expression}"):
            return "torch" in callee or group.reason.gb_id in {*_CALLS, _NO_TENSOR}
        written = re.search(r"[A-Za-z_]\w*(?=[.(])", group.expression)
        roots = {callee.split(".")[0], written[0] if written else ""}
        return bool(roots & _OUTSIDE)

    def change(self, group: BreakGroup) -> str:
        if group.expression.startswith(("import ", "from ")):
            return f"move `{group.expression}` to the top of the file"
        frame, is_time = group.frame, _TIMER.search(group.expression)
        if frame and is_time and is_aside(frame.file, frame.line, _TIMER):
            return "time the compiled call from outside"
        return move_out(group)

    def why(self, group: BreakGroup) -> str:
        callee = _callee(group)
        known = "." not in callee or callee in group.expression
        where = "" if known else f" ({callee})"
        return f"`{group.expression}` reaches outside the tensor program{where}"

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call | ast.Subscript)
        if isinstance(node, ast.Subscript):
            written = not isinstance(node.ctx, ast.Load)
            if written and at.dotted(node.value) == "os.environ":
                yield Match(node)
            return
        dotted = at.dotted(node.func) or ""
        if _CLOCK.fullmatch(dotted) or _FILES.fullmatch(dotted):
            yield Match(node)
        elif _RANDOM.fullmatch(dotted) or _RANDOM_ONCE.fullmatch(dotted):
            code = at.quote(node)
            since = " (torch 2.14 does)" if _RANDOM_ONCE.fullmatch(dotted) else ""
            what = f"uses a random generator that tracing does not follow{since}"
            fix = "draw with torch.rand, and choose with torch.where"
            if _GENERATOR.fullmatch(dotted):
                fix = f"do {code} before the compiled call: it changes the generator"
            yield Match(node, cause=f"{code} {what}", advice=fix)


class DisabledCall(GraphBreak):
    """A function marked @torch.compiler.disable is called.

    ## Why
    The user asked for this break: the function runs eagerly between two graphs.

    ## Bad
        @torch.compiler.disable
        def legacy_norm(x): ...

    ## Good
        def legacy_norm(x): ...      # or keep the decorator if you want the break

    ## Fix safety
    Without the decorator Dynamo traces the function, which may cause other breaks.
    """

    code = "GB106"
    reference = torch_pages.DISABLE
    causes = words("GB0098 GB0099")
    cause_text = (
        "`{at.expression}` calls a function that is excluded from compilation with"
        " torch.compiler.disable"
    )
    advice_text = (
        "remove @torch.compiler.disable from what `{at.expression}` calls, if you do"
        " not want the break"
    )

    def matches(self, group: BreakGroup) -> bool:
        said = group.reason.explanation
        return super().matches(group) or "with `torch.compiler.disable`" in said

    def status(self, group: BreakGroup) -> Status:
        return _break_status(group)


class ExplicitBreak(GraphBreak):
    """The code calls torch._dynamo.graph_break().

    ## Why
    The user, or torch itself, asked for this break.

    ## Bad
        torch._dynamo.graph_break()      # left over from debugging

    ## Good
        # no call of graph_break()

    ## Fix safety
    Removing the call changes no value.
    """

    code = "GB107"
    reference = torch_pages.FULLGRAPH
    causes = words("GB0025 GB0030 GB0269 GB4297 GB4636")
    advice_text = "remove `{at.expression}`, if you do not want the break"

    def why(self, group: BreakGroup) -> str:
        inner = group.first.frames[-1] if group.first.frames else None
        by = " by torch itself" if inner is not None and inner != group.frame else ""
        return f"`{group.expression}` reaches an explicit graph_break(){by}"

    def status(self, group: BreakGroup) -> Status:
        return _break_status(group)


def _break_status(group: BreakGroup) -> Status:
    """The user asked for a break, but not for the whole frame to run eagerly."""
    return "open" if group.is_skip else "intentional"


class UntraceableCall(GraphBreak):
    """The code calls a C function or library code that Dynamo cannot trace.

    ## Why
    The function has no Python source, or Dynamo is configured not to trace it.

    ## Bad
        key = zlib.crc32(payload)        # in the compiled function

    ## Good
        key = zlib.crc32(payload)        # before the compiled call, passed in

    ## Fix safety
    Moving the call out is safe if it does not depend on tensors computed inside.
    Otherwise make it a custom operator.
    """

    code = "GB105"
    fixed = (Fixed("2.14.1", "reading a `ContextVar`", "ContextVar"),)
    reference = torch_pages.CUSTOM_OPERATORS
    causes = words(
        "GB0007 GB0008 GB0009 GB0147 GB0156 GB0177 GB0290 GB0293 GB0294 GB0300"
    )
    nodes = (ast.Call,)
    shown_by = ("GB103", "GB105", "GB115", "GB117", "GB199")
    rewrites = (
        "numbers.in_python",
        "effects.in_graph",
    )

    def matches(self, group: BreakGroup) -> bool:
        return super().matches(group) and not is_of_container(group)

    def why(self, group: BreakGroup) -> str:
        callee = _callee(group)
        if callee.startswith("Tensor."):
            return (
                f"{callee} was looked up before a break among its arguments, which is"
                " too early for Dynamo"
            )
        called = f"calls {callee}, which" if "." in callee else "is a call that"
        return f"`{group.expression}` {called} Dynamo cannot trace"

    def change(self, group: BreakGroup) -> str:
        callee, what = _callee(group), f"`{group.expression}`"
        if callee.startswith(("torch.optim", "Optimizer.", "LRScheduler.")):
            return f"call {what} outside the compiled function"
        if callee.startswith("Tensor."):
            return f"compute the arguments of {what} in a statement of their own"
        if re.match(r"np\.|numpy\.", group.expression):
            return f"write {what} with torch operations"
        return move_out(group)

    def severity(self, group: BreakGroup) -> Severity:
        if not group.is_skip and _callee(group).startswith("torch.optim"):
            # Torch itself breaks around optimizers: it costs one extra graph.
            return "low"
        return super().severity(group)

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call)
        dotted = at.dotted(node.func) or ""
        if _UNTRACED.fullmatch(dotted):
            yield Match(node)
        elif _asks_tokenizer(dotted) and at.program.callee(node, at.function) is None:
            yield Match(
                node,
                cause=f"{at.quote(node)} does the tokenizer's work in each call, in"
                " code that tracing cannot follow",
                advice=_tokenizer_fix(dotted),
            )


def _asks_tokenizer(dotted: str) -> bool:
    match = _TOKENIZER.fullmatch(dotted)
    return match is not None and (
        match[1] is None or bool(_LOOKUPS.fullmatch(match[1]))
    )


def _tokenizer_fix(dotted: str) -> str:
    if re.search(r"\.(?:convert_\w+|token_to_id|id_to_token|id_of|get_vocab)$", dotted):
        return "look it up once, in __init__, and store the id as a Python int"
    return (
        f"call {dotted}(...) before the compiled call, and pass the ids in as a tensor"
    )


class DeepCopy(GraphBreak):
    """copy.deepcopy is called in a compiled region.

    ## Why
    Dynamo does not trace how deepcopy walks an object. From torch 2.13 on, it does if
    there is no tensor in it.

    ## Bad
        local = copy.deepcopy(x)

    ## Good
        local = x.clone()

    ## Fix safety
    clone keeps the autograd history, deepcopy of a leaf does not: use .detach().clone()
    to drop it. What is computed from a copy of a Python object may leave the graph,
    with torchproof.host_value, if it is only numbers and texts.
    """

    code = "GB109"
    fixed = (Fixed("2.13", "an object without tensors", r"^(?!.*TensorVariable)"),)
    causes = words("GB0179 GB4198")
    cause_text = "`{at.expression}` copies an object in a way Dynamo does not trace"
    advice_text = "copy tensors with .clone() instead of `{at.expression}`"
    nodes = (ast.Call,)
    shown_by = ("GB105", "GB109")
    rewrites = ("host_values.clone", "host_values.data")

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call)
        if at.dotted(node.func) != "copy.deepcopy" or not node.args:
            return
        kind = at.kind(node.args[0])
        if kind.is_tensor or kind is Kind.TENSORS:
            yield Match(node)
