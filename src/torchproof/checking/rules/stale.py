"""NM41x: compiled code that ignores a change that eager sees."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import ClassVar

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.answers import answer_groups
from torchproof.checking.rules.rule import EventGroup, Facts, Match, Rule, stack
from torchproof.checking.static.flow import Flow
from torchproof.records import Severity

_RESET = "call torch.compiler.reset() after each change"


class StaleAnswer(Rule):
    """Base class of the rules for state that is read while tracing and not guarded."""

    kind = "stale_state"
    parts = ("baseline",)
    reference = torch_pages.CONCEPTS
    what: ClassVar[str]

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        return answer_groups(facts, "stale_answer")

    def matches(self, group: EventGroup) -> bool:
        return bool(group.data["what"] == self.what)

    def severity(self, group: EventGroup) -> Severity:
        """Medium if only torchproof made the change: the program itself never does."""
        return "medium" if group.data["replayed"] else "high"

    def words(self, group: EventGroup) -> dict[str, object]:
        return {"since": self.since(group)}

    def since(self, group: EventGroup) -> str:
        call = group.first.call
        return f"from call {call} on" if call else "in every call"

    def evidence(self, group: EventGroup) -> Iterable[str]:
        if group.data["replayed"]:
            yield "the change was made by torchproof between two runs of the first call"
        else:
            yield (
                f"the outputs differ from eager's {self.since(group)}; they agree if"
                " the code is compiled again before each call"
            )
        yield from stack(group)


class FrozenEnvironment(StaleAnswer):
    """Compiled code ignores changes of an environment variable.

    ## Why
    Dynamo reads os.environ while tracing and does not guard on it. The value becomes a
    constant of the graph.

    ## Bad
        gain = 2.0 if os.environ.get("GAIN") == "hi" else 1.0      # in forward

    ## Good
        def forward(self, x, gain): ...          # the caller reads the variable

    ## Fix safety
    Passing the value is safe. A new value recompiles once.
    """

    code = "NM411"
    source_text = (
        "{at.function} would keep the value that `{at.expression}` had at trace time"
    )
    what = "environment"
    cause_text = (
        "{at.data[name]} is read while tracing and not guarded: its value is a constant"
        " of the compiled code"
    )
    source_severity = "low"
    nodes = (ast.Call, ast.Subscript, ast.Compare)
    calls = 2
    fix_text = (
        "read {at.data[name]} from os.environ outside the compiled code and pass the"
        " value as an argument; or call torch.compiler.reset() after each change of"
        " {at.data[name]}"
    )

    def message(self, group: EventGroup) -> str:
        data = group.data
        old, new = (_quoted(data[each]) for each in ("old", "new"))
        return (
            f"{group.function} reads the environment variable {data['name']}, and"
            f" compiled code ignores that it changes from {old} to {new}"
        )

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        if _reads_environment(node, at):
            yield Match(node, data={"name": at.quote(node)})


def _reads_environment(node: ast.AST, at: Flow) -> bool:
    if isinstance(node, ast.Call):
        return at.dotted(node.func) in ("os.environ.get", "os.getenv")
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load) and at.dotted(node.value) == "os.environ"
    assert isinstance(node, ast.Compare)
    inside = isinstance(node.ops[0], ast.In | ast.NotIn)
    return inside and at.dotted(node.comparators[0]) == "os.environ"


def _quoted(value: str | None) -> str:
    return "unset" if value is None else f"{value!r}"


class LateHook(StaleAnswer):
    """A hook that is registered or removed after compilation has no effect.

    ## Why
    Dynamo traces the hooks that a module has at that time. By default it does not guard
    on them.

    ## Bad
        compiled(x)
        model.layer.register_forward_hook(hook)
        compiled(x)                              # runs without the hook

    ## Good
        model.layer.register_forward_hook(hook)
        compiled(x)

    ## Fix safety
    The hook becomes part of the graph, or causes a graph break if Dynamo cannot trace
    it.
    """

    code = "NM412"
    reference = torch_pages.MODULES
    what = "hook"
    message_text = (
        "{at.data[name]}() is called after the module was compiled: compiled code"
        " ignores it, {since}"
    )
    cause_text = (
        "Dynamo traces the hooks that a module has at its first call and does not guard"
        " on them (skip_nnmodule_hook_guards is True)"
    )
    fix_text = (
        "register hooks before the first call, or call torch._dynamo.reset() after"
        " registering or removing one; or set"
        " torch._dynamo.config.skip_nnmodule_hook_guards = False before compiling"
    )


class NumpySeed(StaleAnswer):
    """Compiled code ignores numpy's seed.

    ## Why
    Dynamo replaces np.random calls with torch calls, which draw from torch's generator.

    ## Bad
        noise = np.random.randn(3)               # in forward

    ## Good
        noise = torch.randn(3)

    ## Fix safety
    The random numbers differ, their distribution is the same.
    """

    code = "NM413"
    source_text = (
        "`{at.expression}` would draw from torch instead of numpy, or cause a graph"
        " break in {at.function}"
    )
    reference = torch_pages.RANDOMNESS
    what = "numpy_seed"
    message_text = (
        "{at.function} draws from {at.data[name]}, and compiled code ignores"
        " np.random.seed: it draws other numbers than eager"
    )
    cause_text = (
        "{at.data[name]} is traced as torch's: it draws from torch's generator and"
        " changes with torch.manual_seed instead"
    )
    fix_text = (
        "draw with torch (torch.rand, torch.randn; seed with torch.manual_seed or pass"
        " a generator), or draw with numpy outside the compiled code and pass the"
        " numbers as an argument"
    )
    nodes = (ast.Call,)
    shown_by = ("NM413", "NM419", "NM404", "GB101", "GB105", "GB115")

    def evidence(self, group: EventGroup) -> Iterable[str]:
        yield "with another torch.manual_seed the compiled outputs change"

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call)
        dotted = at.dotted(node.func) or ""
        if dotted.startswith(("np.random.", "numpy.random.")):
            yield Match(node, data={"name": dotted})


class ConstantResult(StaleAnswer):
    """A function marked assume_constant_result does not return a constant.

    ## Why
    Dynamo calls the function once while tracing and never again.

    ## Bad
        @torch.compiler.assume_constant_result
        def gain(): return settings["gain"]      # which changes

    ## Good
        def forward(self, x, gain): ...

    ## Fix safety
    Without the decorator Dynamo traces the function and guards on its inputs.
    """

    code = "NM414"
    what = "constant_result"
    message_text = (
        "{at.data[name]}() is assumed to be constant, but its result changes in eager,"
        " {since}"
    )
    cause_text = (
        "assume_constant_result keeps what {at.data[name]} returned while tracing;"
        " without it compiled code gives eager's answers"
    )
    fix_text = (
        "remove assume_constant_result from {at.data[name]}, or pass its result as an"
        " argument; or call torch.compiler.reset() after each change"
    )


class LeftOutGuards(StaleAnswer):
    """The guard that would have detected a change is not checked.

    ## Why
    guard_filter_fn and skip_guard_eval_unsafe skip guards, so torch does not notice the
    changes that these guards would detect.

    ## Bad
        options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}

    ## Good
        options={}               # or a filter that keeps the guards on what changes

    ## Fix safety
    Checking all guards takes some time in each call.
    """

    code = "NM415"
    reference = torch_pages.GUARDS
    what = "guards"
    message_text = (
        "with {at.data[name]}, set here, torch runs compiled code that is no longer"
        " valid, {since}"
    )
    cause_text = (
        "{at.data[name]} leaves out the guard on what has changed; with all guards"
        " compiled code gives eager's answers"
    )
    fix_text = (
        "drop {at.data[name]}, or keep the guards on what changes between calls; or"
        " call torch.compiler.reset() after each change"
    )


class OtherStaleState(StaleAnswer):
    """Compiled code does not notice a change of something that it depends on.

    ## Why
    Dynamo read the value while tracing, and no guard checks it again.

    ## Bad
        scale = config.read()            # in forward; changes between calls

    ## Good
        def forward(self, x, scale): ...

    ## Fix safety
    Passing a value is safe. A new value may recompile once.
    """

    code = "NM419"
    what = "other"
    message_text = (
        "{at.function} computes the value of an earlier call when compiled, {since}:"
        " only eager sees a change"
    )
    fix_text = (
        "pass the value that changes between calls as an argument, or keep it in a"
        " tensor or a module attribute; or call torch.compiler.reset() after each"
        " change"
    )

    def cause(self, group: EventGroup) -> str:
        return (
            f"what changed before call {group.first.call} is read while tracing and"
            " not guarded: compiled anew, the answers are eager's"
        )
