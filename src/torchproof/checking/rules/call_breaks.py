"""GB1xx: breaks on calls that Dynamo does not follow."""

from __future__ import annotations

import re

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.breaks import GraphBreak, own_hints
from torchproof.checking.rules.rule import EventGroup, sentence
from torchproof.records import Severity, Status, module_of

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


# Modules whose calls reach beyond the tensor program.
_OUTSIDE = frozenset(
    [
        "time",
        "datetime",
        "os",
        "posix",
        "nt",
        "io",
        "_io",
        "open",
        "pathlib",
        "tempfile",
        "shutil",
        "glob",
        "socket",
        "subprocess",
        "threading",
        "_thread",
        "multiprocessing",
        "queue",
        "uuid",
        "secrets",
        "random",
        "importlib",
        "__import__",
        "input",
        "sqlite3",
        "psutil",
        "resource",
        "signal",
        "getpass",
        "platform",
    ]
)


def _callee(group: EventGroup) -> str:
    """The function Dynamo would not call, as torch names it."""
    told = f"{group.data['explanation']} {group.data['context']}"
    named = re.search(r"module: ([\w.]+|<unknown module>), qualname: ([\w.<>]+)", told)
    if named:
        return named[2] if named[1].startswith("<") else f"{named[1]}.{named[2]}"
    quoted = re.search(r"(?:function|builtin operator|builtin) `?([\w.]+)`?", told)
    return quoted[1] if quoted else ""


class OutputCall(GraphBreak):
    """print, logging, warnings or a progress bar in a compiled region.

    ## Why
    Output has to happen between two operations, so the graph is cut there.

    ## Bad
        print("mean", h.mean())

    ## Good
        if not torch.compiler.is_compiling():
            print("mean", h.mean())

    ## Fix safety
    The numbers stay the same; the output is gone, late, or printed once while tracing.
    """

    code = "GB104"
    types = (*_CALLS, r"builtin operator")

    def matches(self, group: EventGroup) -> bool:
        written = re.search(r"(\w+)\(", group.expression)
        calls = written is not None and written[1] in {
            "print",
            "pprint",
            "warn",
            "write",
        }
        told = f"{group.data['type']} {group.data['context']}"
        named = re.search(
            r"\bprint\b|logg(ing|er)|\bwarn|sys\.std(out|err)|TextIO|tqdm", told
        )
        return self.of_type(group) and (calls or named is not None)

    def why(self, group: EventGroup) -> str:
        return f"`{group.expression}` writes output in the middle of the region"

    def remedy(self, group: EventGroup) -> str:
        what = f"`{group.expression}`"
        hook = (
            " (or remove the hook that holds it)" if "hook" in _functions(group) else ""
        )
        if re.search(r"\bprint\b", f"{group.data['context']} {group.expression}"):
            return (
                f"remove {what}{hook}, print after the compiled call, or keep it behind"
                " `if not torch.compiler.is_compiling():`; to keep the output, add"
                " print to torch._dynamo.config.reorderable_logging_functions"
            )
        call = group.expression.split("(")[0]
        return (
            f"remove {what}{hook} or keep it behind `if not"
            " torch.compiler.is_compiling():`; or let Dynamo drop it:"
            f" torch._dynamo.config.ignore_logging_functions.add({call})"
        )

    def elsewhere(self, group: EventGroup) -> str:
        module = module_of(group.frame.file) if group.frame else None
        call = re.match(r"[A-Za-z_][\w.]*(?=\()", group.expression)
        if module is None or call is None or call[0].startswith("self."):
            return super().elsewhere(group)
        if call[0] == "print":
            return (
                "before the first call, let Dynamo print after the graph:"
                " torch._dynamo.config.reorderable_logging_functions.add(print)"
            )
        return (
            f"before the first call, let Dynamo drop it: `import {module}` and"
            f" `torch._dynamo.config.ignore_logging_functions.add({module}.{call[0]})`;"
            " or avoid what it reports"
        )


def _functions(group: EventGroup) -> str:
    return " ".join(f.function for f in group.first.frames) + group.function


class OutsideWorld(GraphBreak):
    """Time, files, environment, imports, locks or random generators in a region.

    ## Why
    What happens outside the tensors has no place in a graph, and would be frozen if it
    had.

    ## Bad
        started = time.time()

    ## Good
        started = time.time()        # around the compiled call, or passed in

    ## Fix safety
    Moving the call out changes when it happens: once per call instead of once per use.
    """

    code = "GB115"
    types = (
        *_CALLS,
        r"builtin operator",
        r"Generator|returned non-Tensor",
        r"event method",
        r"profiler|record_function",
        r"distributed|P2P",
    )

    def matches(self, group: EventGroup) -> bool:
        if re.search(r"Import failure|Bad import|torch\.Generator", group.data["type"]):
            return True
        if "(Generator)" in group.data["context"]:
            return True
        callee = _callee(group)
        if re.search(r"seed|rng", f"{callee} {group.expression}"):
            return self.of_type(group) or "torch" in callee
        written = re.search(r"[A-Za-z_]\w*(?=[.(])", group.expression)
        roots = {callee.split(".")[0], written[0] if written else ""}
        return bool(roots & _OUTSIDE)

    def why(self, group: EventGroup) -> str:
        return (
            f"`{group.expression}` reaches outside the tensor program"
            f" ({_callee(group) or group.data['type']})"
        )

    def remedy(self, group: EventGroup) -> str:
        return (
            f"do `{group.expression}` outside the compiled function and pass its"
            " result in as an argument; or put it in a function marked"
            " @torch.compiler.disable"
        )


class DisabledCall(GraphBreak):
    """A function marked @torch.compiler.disable is called.

    ## Why
    The user asked for the break: the function runs eagerly between two graphs.

    ## Bad
        @torch.compiler.disable
        def legacy_norm(x): ...

    ## Good
        the same, if the break is wanted; else remove the decorator

    ## Fix safety
    Without the decorator the function is traced: other breaks may come to light.
    """

    code = "GB106"
    reference = torch_pages.DISABLE
    types = (r"torch\.compiler\.disable",)

    def why(self, group: EventGroup) -> str:
        return (
            f"`{group.expression}` calls a function that is excluded from compilation"
            " with torch.compiler.disable"
        )

    def remedy(self, group: EventGroup) -> str:
        return (
            "if the break is not wanted, remove @torch.compiler.disable from the"
            f" function called in `{group.expression}`, move the call outside the"
            " compiled function, or make it a custom op (torch.library.custom_op)"
        )

    def status(self, group: EventGroup) -> Status:
        return _asked_for(group)


class ExplicitBreak(GraphBreak):
    """An explicit call of torch._dynamo.graph_break().

    ## Why
    The user (or torch itself) asked for the break.

    ## Bad
        torch._dynamo.graph_break()

    ## Good
        remove the call, if it was left over from debugging

    ## Fix safety
    Removing it changes no value.
    """

    code = "GB107"
    reference = torch_pages.FULLGRAPH
    types = (
        r"Call to `torch\._dynamo\.(graph_break|skip_frame|step_unsupported)",
        r"Forced graph break",
        r"ComptimeContext",
    )

    def why(self, group: EventGroup) -> str:
        inner = group.first.frames[-1] if group.first.frames else None
        by = " by torch itself" if inner is not None and inner != group.frame else ""
        return f"`{group.expression}` reaches an explicit graph_break(){by}"

    def remedy(self, group: EventGroup) -> str:
        return f"remove the graph break at `{group.expression}` if it is not wanted"

    def status(self, group: EventGroup) -> Status:
        return _asked_for(group)


def _asked_for(group: EventGroup) -> Status:
    """A break was asked for; that its whole frame runs eagerly was not."""
    return "open" if group.extra["kind"] == "skipped_frame" else "intentional"


class UntraceableCall(GraphBreak):
    """A call into C or library code that Dynamo cannot trace.

    ## Why
    There is no Python to look into, or Dynamo was told to keep out.

    ## Bad
        key = zlib.crc32(payload)

    ## Good
        key = zlib.crc32(payload)        # before the compiled call, passed in

    ## Fix safety
    Moving it out is safe if it does not depend on tensors made inside; else make it a
    custom operator.
    """

    code = "GB105"
    reference = torch_pages.CUSTOM_OPERATORS
    types = (*_CALLS, r"numpy function|numpy\.\*")

    def matches(self, group: EventGroup) -> bool:
        containers = r"`(deque|dict|list|set|str|tuple|OrderedDict|defaultdict)\.\w+`"
        told = f"{group.data['explanation']} {' '.join(group.data['hints'])}"
        excluded = re.search(containers, told) or "(delayed)" in group.data["type"]
        return super().matches(group) and not excluded

    def why(self, group: EventGroup) -> str:
        callee = _callee(group) or "a function"
        if callee.startswith("Tensor."):
            return (
                f"{callee} was looked up before a break among its arguments, and"
                " Dynamo cannot call a tensor's method that it did not look up itself"
            )
        return f"`{group.expression}` calls {callee}, which Dynamo cannot trace"

    def remedy(self, group: EventGroup) -> str:
        callee = _callee(group)
        if callee.startswith("torch.optim"):
            return (
                f"call `{group.expression}` outside the compiled function, or compile"
                " the optimizer's step on its own, without a scheduler wrapped around"
                " it; the break is torch's own and costs one extra graph"
            )
        if callee.startswith(("Optimizer.", "LRScheduler.")):
            return (
                f"call `{group.expression}` outside the compiled function: it works"
                " on Python state around the tensors"
            )
        if callee.startswith("Tensor."):
            return (
                f"compute the arguments of `{group.expression}` in a statement of"
                " their own; this break goes with the one among them"
            )
        if "numpy" in group.data["type"]:
            return (
                f"write `{group.expression}` with torch operations, or compute it"
                " outside the compiled function (or in a custom op,"
                " torch.library.custom_op) and pass the tensor in"
            )
        hints = own_hints(group)
        advice = (
            f"move out `{group.expression}`: compute it outside the compiled function"
            " and pass the value in; if it works on tensors, wrap it as a custom op"
            " (torch.library.custom_op); if the break is wanted, mark it with"
            " @torch.compiler.disable"
        )
        return f"{advice}; torch adds: {sentence(hints)}" if hints else advice

    def severity(self, group: EventGroup) -> Severity:
        if group.extra["kind"] == "graph_break" and _callee(group).startswith(
            "torch.optim"
        ):
            # Torch breaks around its optimizers itself: no remedy, one extra graph.
            return "low"
        return super().severity(group)


class DeepCopy(GraphBreak):
    """copy.deepcopy inside a compiled region.

    ## Why
    deepcopy walks objects in ways Dynamo does not follow.

    ## Bad
        local = copy.deepcopy(x)

    ## Good
        local = x.clone()

    ## Fix safety
    clone keeps the autograd history, deepcopy of a leaf does not: add .detach() if so.
    """

    code = "GB109"
    types = (r"deepcopy",)

    def why(self, group: EventGroup) -> str:
        return f"`{group.expression}` copies an object in a way Dynamo does not trace"

    def remedy(self, group: EventGroup) -> str:
        return (
            "copy tensors with .clone() (or .detach().clone()) instead of"
            f" `{group.expression}`, and copy other objects once, outside the"
            " compiled function"
        )
