"""GB1xx: graph breaks at calls that Dynamo does not trace."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import (
    Piece,
    assembled,
    disabled,
    has_setting,
    moved_out,
    setting,
)
from torchproof.checking.rules.breaks import BreakGroup, GraphBreak, move_out, own_hints
from torchproof.checking.rules.rule import (
    Fixed,
    Match,
    sentence,
    version_of,
)
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.kinds import Kind, words
from torchproof.checking.static.source import walk
from torchproof.records import Setting, Severity, Status, module_of, tree_of

_CALLS = (
    r"marked as skipped",
    r"Unsupported function call",
    r"Unsupported method call",
    r"functions not implemented in python",
    r"forbidden callable",
    r"logging",
    r"Import failure|Bad import",
    r"constant fold exception",
    r"unsupported contextlib|Unsupported context manager",
    r"reorder a debugging function",
)


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
_BARS = ("tqdm.tqdm", "tqdm.trange", "tqdm.auto.tqdm", "tqdm.auto.trange")
_SWITCH = re.compile(r"debug|verbose", re.IGNORECASE)


_TIMED = "time the compiled call from outside; torch.profiler shows the inside"
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
    types = (*_CALLS, r"builtin operator")
    cause_text = "`{at.expression}` writes output in the middle of the region"
    nodes = (ast.Call,)
    shown_by = ("GB104", "GB105", "GB117")
    rewrites = (
        "effects.in_graph",
        "effects.skip_while_compiling",
    )
    settings = (
        Setting("dynamo.reorderable_logging_functions", "builtins.print"),
        Setting("dynamo.reorderable_logging_functions", "warnings.warn"),
    )

    def matches(self, group: BreakGroup) -> bool:
        written = re.search(r"(\w+)\(", group.expression)
        calls = written is not None and written[1] in {
            "print",
            "pprint",
            "warn",
            "write",
        }
        text = f"{group.reason.type} {group.reason.context}"
        named = re.search(
            r"\bprint\b|logg(ing|er)|\bwarn|sys\.std(out|err)|TextIO|tqdm", text
        )
        return self.of_type(group) and (calls or named is not None)

    def change(self, group: BreakGroup) -> str:
        what = f"`{group.expression}`"
        hook = (
            " (or remove the hook that calls it)" if "hook" in _functions(group) else ""
        )
        line = group.line
        alone = not line.is_readable or line.is_unused
        later = Piece(f"remove {what}{hook}, or do it after the compiled call", alone)
        skipped = Piece("put it under `if not torch.compiler.is_compiling():`", alone)
        return assembled(later, skipped, *self._setting_pieces(group))

    def _setting_pieces(self, group: BreakGroup) -> Iterator[Piece]:
        """Settings that keep the output, or ignore the call."""
        if re.search(r"\bprint\b", f"{group.reason.context} {group.expression}"):
            option = setting(group, self.settings[0])
            yield replace(option, text=f"to keep the output, {option.text}")
            return
        call = re.match(r"[A-Za-z_][\w.]*(?=\()", group.expression)
        # What a local name refers to is not known where the setting is made.
        if call and not call[0].startswith("self.") and _is_global(group, call[0]):
            name = "torch._dynamo.config.ignore_logging_functions"
            yield Piece(
                f"make Dynamo ignore the call: {name}.add({call[0]})",
                not has_setting(group, name, call[0]),
            )

    def library_fix(self, group: BreakGroup) -> str:
        module = module_of(group.frame.file) if group.frame else None
        call = re.match(r"[A-Za-z_][\w.]*(?=\()", group.expression)
        if module is None or call is None or call[0].startswith("self."):
            return super().library_fix(group)
        if call[0] == "print":
            return assembled(
                setting(
                    group, self.settings[0], " (Dynamo then prints after the graph)"
                )
            )
        return (
            f"before the first call, make Dynamo ignore it: `import {module}` and"
            f" `torch._dynamo.config.ignore_logging_functions.add({module}.{call[0]})`;"
            " or avoid the situation that it reports"
        )

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call)
        if not _is_output(node, at) or _is_switched(at):
            return
        yield Match(
            node,
            advice="remove it, move it after the compiled call, or guard it with `if not"
            " torch.compiler.is_compiling():`",
            # Under a condition, the program may never reach it.
            severity="low" if at.conditions else None,
        )


def _is_output(node: ast.Call, at: Flow) -> bool:
    dotted = at.dotted(node.func) or ""
    if dotted in _WRITES:
        return not any(k.arg == "file" for k in node.keywords)
    if dotted in _BARS:
        return True
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _LEVELS:
        return False
    return _LOGGER.fullmatch(dotted.rpartition(".")[0]) is not None


def _is_switched(at: Flow) -> bool:
    """Whether a debug or verbose switch guards this code."""
    for condition in at.conditions:
        for node in walk(condition):
            name = getattr(node, "attr", getattr(node, "id", ""))
            if isinstance(name, str) and _SWITCH.search(name):
                return True
    return False


def _is_global(group: BreakGroup, name: str) -> bool:
    """Whether the file of the place binds the name when it is imported."""
    root = name.partition(".")[0]
    file = group.frame.file if group.frame else ""
    for node in tree_of(file).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        aliases = node.names if isinstance(node, ast.Import | ast.ImportFrom) else []
        bound = [ast.unparse(target) for target in targets]
        bound += [(alias.asname or alias.name).partition(".")[0] for alias in aliases]
        if root in bound:
            return True
    return False


def _functions(group: BreakGroup) -> str:
    return " ".join(f.function for f in group.first.frames) + group.function


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
    types = (
        *_CALLS,
        r"builtin operator",
        r"Generator|returned non-Tensor",
        r"event method",
        r"profiler|record_function",
        r"distributed|P2P",
    )
    nodes = (ast.Call, ast.Subscript)
    shown_by = ("GB105", "GB111", "GB115", "GB117")
    rewrites = (
        "layer_drop.draw_where_needed",
        "effects.in_graph",
    )

    def matches(self, group: BreakGroup) -> bool:
        if re.search(r"Import failure|Bad import|torch\.Generator", group.reason.type):
            return True
        if "(Generator)" in group.reason.context:
            return True
        callee = _callee(group)
        if re.search(r"seed|rng", f"{callee} {group.expression}"):
            return self.of_type(group) or "torch" in callee
        written = re.search(r"[A-Za-z_]\w*(?=[.(])", group.expression)
        roots = {callee.split(".")[0], written[0] if written else ""}
        return bool(roots & _OUTSIDE)

    def change(self, group: BreakGroup) -> str:
        is_clock = _CLOCK.search(group.expression) is not None
        return assembled(Piece(_TIMED, is_clock), otherwise=move_out(group))

    def why(self, group: BreakGroup) -> str:
        return (
            f"`{group.expression}` reaches outside the tensor program"
            f" ({_callee(group) or group.reason.type})"
        )

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call | ast.Subscript)
        if isinstance(node, ast.Subscript):
            written = not isinstance(node.ctx, ast.Load)
            if written and at.dotted(node.value) == "os.environ":
                yield Match(node, cause=f"{at.quote(node)} writes to the environment")
            return
        dotted = at.dotted(node.func) or ""
        if _CLOCK.fullmatch(dotted):
            yield Match(node, cause=f"{at.quote(node)} reads the clock", advice=_TIMED)
        elif _FILES.fullmatch(dotted):
            cause = f"{at.quote(node)} reaches outside the tensor program"
            yield Match(node, cause=cause)
        elif _RANDOM.fullmatch(dotted) or _RANDOM_ONCE.fullmatch(dotted):
            code = at.quote(node)
            since = " (torch 2.14 does)" if _RANDOM_ONCE.fullmatch(dotted) else ""
            what = f"uses a random generator that tracing does not follow{since}"
            fix = (
                "draw with torch.rand and choose with torch.where (random.uniform is"
                f" traced too, but a branch on its result is not), or {_PASS}"
            )
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
    types = (r"torch\.compiler\.disable",)
    cause_text = (
        "`{at.expression}` calls a function that is excluded from compilation with"
        " torch.compiler.disable"
    )
    advice_text = (
        "if you do not want the break, remove @torch.compiler.disable from the function"
        " called in `{at.expression}`, or make it a custom op (torch.library.custom_op)"
    )

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
    types = (
        r"Call to `torch\._dynamo\.(graph_break|skip_frame|step_unsupported)",
        r"Forced graph break",
        r"ComptimeContext",
    )
    advice_text = "remove the graph break at `{at.expression}` if you do not want it"

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
    types = (*_CALLS, r"numpy function|numpy\.\*")
    nodes = (ast.Call,)
    shown_by = ("GB103", "GB105", "GB115", "GB117", "GB199")
    rewrites = (
        "numbers.in_python",
        "effects.in_graph",
    )
    last_rewrites = ("host_calls.call",)

    def matches(self, group: BreakGroup) -> bool:
        containers = r"`(deque|dict|list|set|str|tuple|OrderedDict|defaultdict)\.\w+`"
        text = f"{group.reason.explanation} {' '.join(group.reason.hints)}"
        excluded = re.search(containers, text) or "(delayed)" in group.reason.type
        return super().matches(group) and not excluded

    def why(self, group: BreakGroup) -> str:
        callee = _callee(group) or "a function"
        if callee.startswith("Tensor."):
            return (
                f"{callee} was looked up before a break among its arguments, and"
                " Dynamo cannot call a tensor's method that it did not look up itself"
            )
        return f"`{group.expression}` calls {callee}, which Dynamo cannot trace"

    def change(self, group: BreakGroup) -> str:
        callee = _callee(group)
        if callee.startswith("torch.optim"):
            return (
                f"call `{group.expression}` outside the compiled function, or compile"
                " the optimizer's step separately, without a scheduler wrapped around"
                " it; the break comes from torch itself and costs one extra graph"
            )
        if callee.startswith(("Optimizer.", "LRScheduler.")):
            return (
                f"call `{group.expression}` outside the compiled function: it changes"
                " Python state, not only tensors"
            )
        if callee.startswith("Tensor."):
            return (
                f"compute the arguments of `{group.expression}` in a statement of"
                " their own; this break disappears with the break in the arguments"
            )
        if "numpy" in group.reason.type:
            what = f"`{group.expression}`"
            return assembled(
                Piece(f"write {what} with torch operations"),
                *moved_out(group, what),
                Piece("wrap it as a custom op (torch.library.custom_op)"),
            )
        what = f"`{group.expression}`"
        hints = own_hints(group)
        return assembled(
            *moved_out(group, what),
            Piece(
                f"wrap {what} as a custom op (torch.library.custom_op), if it takes and"
                " returns tensors",
                not group.line.is_unused,
            ),
            Piece(sentence(hints)),
            otherwise=disabled(what),
        )

    def severity(self, group: BreakGroup) -> Severity:
        if not group.is_skip and _callee(group).startswith("torch.optim"):
            # Torch itself breaks around optimizers: it costs one extra graph.
            return "low"
        return super().severity(group)

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call)
        dotted = at.dotted(node.func) or ""
        if _UNTRACED.fullmatch(dotted):
            what = "calls into code that is not Python, which tracing cannot follow"
            yield Match(node, cause=f"{at.quote(node)} {what}", advice=_PASS)
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
        return (
            "look it up once, in __init__ or before the compiled call, and store the"
            " id as a Python int"
        )
    return (
        f"call {dotted}(...) before the compiled function and pass the token ids in as"
        " a tensor"
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
    types = (r"deepcopy",)
    cause_text = "`{at.expression}` copies an object in a way Dynamo does not trace"
    advice_text = (
        "copy tensors with .clone() (or .detach().clone()) instead of"
        " `{at.expression}`, and copy other objects once, outside the compiled function"
    )
    nodes = (ast.Call,)
    shown_by = ("GB105", "GB109")
    rewrites = ("host_values.data",)

    def change(self, group: BreakGroup) -> str:
        fix = super().change(group)
        if "TensorVariable" in group.reason.context:
            return fix
        installed = version_of(group.facts.observation.environment.get("torch"))
        newer = "; or update torch: 2.13 traces it, if there is no tensor in it"
        return f"{fix}{newer * (installed < (2, 13))}"

    def source_advice(self, at: BreakGroup) -> str:
        return super().change(at)

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call)
        if at.dotted(node.func) != "copy.deepcopy" or not node.args:
            return
        kind = at.kind(node.args[0])
        if kind.is_tensor or kind is Kind.TENSORS:
            yield Match(node)
