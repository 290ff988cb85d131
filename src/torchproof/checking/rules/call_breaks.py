"""GB1xx: breaks on calls that Dynamo does not follow."""

from __future__ import annotations

import re

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.breaks import GraphBreak, own_hints
from torchproof.checking.rules.rule import Subject, sentence
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


def _callee(subject: Subject) -> str:
    """The function Dynamo would not call, as torch names it."""
    told = f"{subject.data['explanation']} {subject.data['context']}"
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

    def matches(self, subject: Subject) -> bool:
        written = re.search(r"(\w+)\(", subject.expression)
        calls = written is not None and written[1] in {
            "print",
            "pprint",
            "warn",
            "write",
        }
        told = f"{subject.data['type']} {subject.data['context']}"
        named = re.search(
            r"\bprint\b|logg(ing|er)|\bwarn|sys\.std(out|err)|TextIO|tqdm", told
        )
        return self.of_type(subject) and (calls or named is not None)

    def why(self, subject: Subject) -> str:
        return f"`{subject.expression}` writes output in the middle of the region"

    def remedy(self, subject: Subject) -> str:
        what = f"`{subject.expression}`"
        hook = (
            " (or remove the hook that holds it)"
            if "hook" in _functions(subject)
            else ""
        )
        if re.search(r"\bprint\b", f"{subject.data['context']} {subject.expression}"):
            return (
                f"remove {what}{hook}, print after the compiled call, or keep it behind"
                " `if not torch.compiler.is_compiling():`; to keep the output, add"
                " print to torch._dynamo.config.reorderable_logging_functions"
            )
        call = subject.expression.split("(")[0]
        return (
            f"remove {what}{hook} or keep it behind `if not"
            " torch.compiler.is_compiling():`; or let Dynamo drop it:"
            f" torch._dynamo.config.ignore_logging_functions.add({call})"
        )

    def elsewhere(self, subject: Subject) -> str:
        module = module_of(subject.frame.file) if subject.frame else None
        call = re.match(r"[A-Za-z_][\w.]*(?=\()", subject.expression)
        if module is None or call is None or call[0].startswith("self."):
            return super().elsewhere(subject)
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


def _functions(subject: Subject) -> str:
    return " ".join(f.function for f in subject.first.frames) + subject.function


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

    def matches(self, subject: Subject) -> bool:
        if re.search(
            r"Import failure|Bad import|torch\.Generator", subject.data["type"]
        ):
            return True
        if "(Generator)" in subject.data["context"]:
            return True
        callee = _callee(subject)
        if re.search(r"seed|rng", f"{callee} {subject.expression}"):
            return self.of_type(subject) or "torch" in callee
        written = re.search(r"[A-Za-z_]\w*(?=[.(])", subject.expression)
        roots = {callee.split(".")[0], written[0] if written else ""}
        return bool(roots & _OUTSIDE)

    def why(self, subject: Subject) -> str:
        return (
            f"`{subject.expression}` reaches outside the tensor program"
            f" ({_callee(subject) or subject.data['type']})"
        )

    def remedy(self, subject: Subject) -> str:
        return (
            f"do `{subject.expression}` outside the compiled function and pass its"
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

    def why(self, subject: Subject) -> str:
        return (
            f"`{subject.expression}` calls a function that is excluded from compilation"
            " with torch.compiler.disable"
        )

    def remedy(self, subject: Subject) -> str:
        return (
            "if the break is not wanted, remove @torch.compiler.disable from the"
            f" function called in `{subject.expression}`, move the call outside the"
            " compiled function, or make it a custom op (torch.library.custom_op)"
        )

    def status(self, subject: Subject) -> Status:
        return _asked_for(subject)


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

    def why(self, subject: Subject) -> str:
        inner = subject.first.frames[-1] if subject.first.frames else None
        by = " by torch itself" if inner is not None and inner != subject.frame else ""
        return f"`{subject.expression}` reaches an explicit graph_break(){by}"

    def remedy(self, subject: Subject) -> str:
        return f"remove the graph break at `{subject.expression}` if it is not wanted"

    def status(self, subject: Subject) -> Status:
        return _asked_for(subject)


def _asked_for(subject: Subject) -> Status:
    """A break was asked for; that its whole frame runs eagerly was not."""
    return "open" if subject.extra["kind"] == "skipped_frame" else "intentional"


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

    def matches(self, subject: Subject) -> bool:
        containers = r"`(deque|dict|list|set|str|tuple|OrderedDict|defaultdict)\.\w+`"
        told = f"{subject.data['explanation']} {' '.join(subject.data['hints'])}"
        excluded = re.search(containers, told) or "(delayed)" in subject.data["type"]
        return super().matches(subject) and not excluded

    def why(self, subject: Subject) -> str:
        callee = _callee(subject) or "a function"
        if callee.startswith("Tensor."):
            return (
                f"{callee} was looked up before a break among its arguments, and"
                " Dynamo cannot call a tensor's method that it did not look up itself"
            )
        return f"`{subject.expression}` calls {callee}, which Dynamo cannot trace"

    def remedy(self, subject: Subject) -> str:
        callee = _callee(subject)
        if callee.startswith("torch.optim"):
            return (
                f"call `{subject.expression}` outside the compiled function, or compile"
                " the optimizer's step on its own, without a scheduler wrapped around"
                " it; the break is torch's own and costs one extra graph"
            )
        if callee.startswith(("Optimizer.", "LRScheduler.")):
            return (
                f"call `{subject.expression}` outside the compiled function: it works"
                " on Python state around the tensors"
            )
        if callee.startswith("Tensor."):
            return (
                f"compute the arguments of `{subject.expression}` in a statement of"
                " their own; this break goes with the one among them"
            )
        if "numpy" in subject.data["type"]:
            return (
                f"write `{subject.expression}` with torch operations, or compute it"
                " outside the compiled function (or in a custom op,"
                " torch.library.custom_op) and pass the tensor in"
            )
        hints = own_hints(subject)
        advice = (
            f"move out `{subject.expression}`: compute it outside the compiled function"
            " and pass the value in; if it works on tensors, wrap it as a custom op"
            " (torch.library.custom_op); if the break is wanted, mark it with"
            " @torch.compiler.disable"
        )
        return f"{advice}; torch adds: {sentence(hints)}" if hints else advice

    def severity(self, subject: Subject) -> Severity:
        if subject.extra["kind"] == "graph_break" and _callee(subject).startswith(
            "torch.optim"
        ):
            # Torch breaks around its optimizers itself: no remedy, one extra graph.
            return "low"
        return super().severity(subject)


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

    def why(self, subject: Subject) -> str:
        return f"`{subject.expression}` copies an object in a way Dynamo does not trace"

    def remedy(self, subject: Subject) -> str:
        return (
            "copy tensors with .clone() (or .detach().clone()) instead of"
            f" `{subject.expression}`, and copy other objects once, outside the"
            " compiled function"
        )
