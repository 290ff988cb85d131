"""NM4xx: compiled outputs that differ from eager's by more than rounding."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import ClassVar, TypeVar

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import (
    EventGroup,
    Facts,
    Match,
    Rule,
    event_place,
    grouped,
    shorten,
    stack,
)
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.source import walk
from torchproof.records import (
    AnswerEvent,
    FormDifference,
    RaisedEvent,
    Severity,
    StaleAnswerEvent,
    Symptom,
    WrongAnswerEvent,
)

_GENERATED = ("Inductor", "the backend")

WrongGroup = EventGroup[WrongAnswerEvent]
StaleGroup = EventGroup[StaleAnswerEvent]
RaisedGroup = EventGroup[RaisedEvent]
A = TypeVar("A", bound=EventGroup[AnswerEvent])


class Answer(Rule[A]):
    """Base class of the rules for outputs that differ from eager's."""

    parts = ("baseline",)

    def word(self, group: A) -> str | None:
        return group.first.layer


class WrongAnswer(Answer[WrongGroup]):
    """Base class of the rules for wrong outputs; each rule knows one cause."""

    kind = "numerics"
    reference = torch_pages.NUMERICS

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[WrongGroup]:
        """One group per place and cause."""

        def key(event: WrongAnswerEvent) -> object:
            return event_place(event), event.form and event.form.what, event.layer

        for group in grouped(facts.of(WrongAnswerEvent), key):
            yield WrongGroup(tuple(group), event_place(group[0]), facts)

    def words(self, group: WrongGroup) -> dict[str, object]:
        return {"where": self.at(group), "difference": self.difference(group)}

    def at(self, group: WrongGroup) -> str:
        """The expression that causes the difference, or else the function."""
        if group.first.frames and group.expression:
            return f"`{group.expression}` in {group.function}"
        return group.function

    def difference(self, group: WrongGroup) -> str:
        """In which call and output, and by how much."""
        numerics = group.first.numerics
        value = group.first.value or numerics
        why = f": {value['why']}" if value.get("why") else ""
        return f"{numerics.get('where') or 'an output'}{why}"

    def evidence(self, group: WrongGroup) -> Iterable[str]:
        numerics = group.first.numerics
        if numerics.get("max_rel_error") is not None:
            yield (
                f"relative error {numerics['max_rel_error']:.3g}, eager's own"
                f" {numerics.get('eager_error') or 0.0:.3g}, against"
                f" {numerics.get('reference') or 'eager'}"
            )
        if group.first.layer:
            yield f"first wrong in {group.first.layer}"
        yield from stack(group)

    def symptom(self, group: WrongGroup) -> Symptom | None:
        first = group.first
        return Symptom(
            operation=first.operation, layer=first.layer, numerics=first.numerics
        )


class GeneratedCode(WrongAnswer):
    """Generated code computes another value than eager, beyond rounding.

    ## Why
    The captured graph is right, and so are the layers before code generation. The
    generated kernel for this operation is wrong for these values.

    ## Bad
        torch.acosh(x)                   # x holds 1e20: inf on CPU with torch 2.13

    ## Good
        torch.acosh(x.double()).float()

    ## Fix safety
    A function marked @torch.compiler.disable computes what eager computes.
    """

    code = "NM401"
    message_text = (
        "{where} computes another value compiled than in eager ({difference})"
    )

    def matches(self, group: WrongGroup) -> bool:
        return (group.first.layer or "").startswith(_GENERATED)

    def cause(self, group: WrongGroup) -> str:
        operation = group.first.operation
        what = f" of {operation}" if operation else ""
        return (
            f"the code{what} that {group.first.layer} generates is wrong for these"
            " values: tracing and the layers before it give eager's answers"
        )

    def advice(self, group: WrongGroup) -> str:
        what = self.at(group)
        report = "and report it to PyTorch with a minimal program"
        if (group.first.gives or "").startswith("torch.uint"):
            return (
                f"clamp before {what}, or convert through a signed type:"
                " .to(torch.int64).to(torch.uint8). Or move it into a function marked"
                f" @torch.compiler.disable, {report}"
            )
        if not group.first.operation:
            return (
                f"isolate the wrong part: mark functions that {group.function} calls"
                " with @torch.compiler.disable until the outputs agree, keep that"
                f" function disabled, {report}"
            )
        return (
            f"isolate {what} in a function marked @torch.compiler.disable, or compute"
            f" it in float64 (x.double()), {report}"
        )


class EarlierLayer(WrongAnswer):
    """Compiled outputs are wrong before any code is generated.

    ## Why
    Tracing, functionalisation or a decomposition changes what the program computes.

    ## Bad
        torch.compile(f, backend="aot_eager")     # differs from f

    ## Good
        # move the wrong part of f into a function marked @torch.compiler.disable

    ## Fix safety
    A function marked @torch.compiler.disable computes what eager computes.
    """

    code = "NM402"
    reference = torch_pages.REPORTING
    message_text = (
        "{where} computes another value compiled than in eager, already in"
        " {at.first.layer} ({difference})"
    )
    cause_text = (
        "{at.first.layer} is the first layer that is wrong; the layers before it give"
        " eager's answers"
    )
    advice_text = (
        "isolate {where} in a function marked @torch.compiler.disable, and report it to"
        " PyTorch with a minimal program"
    )

    def matches(self, group: WrongGroup) -> bool:
        return bool(group.first.layer)


class UndeclaredMutation(WrongAnswer):
    """A custom operator changes an argument without declaring it.

    ## Why
    The compiler relies on the declaration: it may drop, move or repeat the call.

    ## Bad
        @torch.library.custom_op("lib::scale", mutates_args=())
        def scale(x: Tensor) -> None: x.mul_(2)

    ## Good
        @torch.library.custom_op("lib::scale", mutates_args=("x",))

    ## Fix safety
    Eager computes the same values. torch.library.opcheck tests the declaration.
    """

    code = "NM403"
    reference = torch_pages.CUSTOM_OPERATORS
    message_text = (
        "{where} calls {at.first.operation}, which changes {names} without declaring"
        " it: compiled outputs are wrong ({difference})"
    )
    cause_text = (
        "{at.first.operation} is declared not to change {names}; from {at.first.layer}"
        " on the compiler relies on that"
    )

    def matches(self, group: WrongGroup) -> bool:
        return bool(group.first.undeclared)

    def words(self, group: WrongGroup) -> dict[str, object]:
        names = " and ".join(group.first.undeclared)
        return {**super().words(group), "names": names}

    def advice(self, group: WrongGroup) -> str:
        listed = "".join(f'"{name}", ' for name in group.first.undeclared)
        return (
            f"declare it where {group.first.operation} is defined:"
            f" mutates_args=({listed.rstrip()}), or make it change and return a clone"
        )


class OtherRandomNumbers(WrongAnswer):
    """Compiled code draws other random numbers than eager, from the same seed.

    ## Why
    Inductor has its own random stream. With eager's random stream the outputs agree.

    ## Bad
        assert torch.equal(compiled(x), model(x))          # with dropout

    ## Good
        torch._inductor.config.fallback_random = True      # to compare

    ## Fix safety
    You do not need to fix anything. Eager's random stream costs speed.
    """

    code = "NM404"
    reference = torch_pages.RANDOMNESS
    run_severity = "low"
    message_text = "{at.function} draws other random numbers compiled than in eager"
    cause_text = "Inductor has its own random stream; with eager's the answers agree"
    advice_text = (
        "expected and harmless; to compare number by number, set"
        " torch._inductor.config.fallback_random = True"
    )

    def matches(self, group: WrongGroup) -> bool:
        return bool(group.first.layer == "the random stream")


class CompilingBranch(WrongAnswer):
    """Code checks whether it is being compiled, and then computes something else.

    ## Why
    In compiled code `is_compiling()` is True, so the code takes another branch.

    ## Bad
        y = x * 2 if torch.compiler.is_compiling() else x * 3

    ## Good
        y = x * 3

    ## Fix safety
    Only the author knows which branch is right.
    """

    code = "NM405"
    message_text = (
        "{where} takes another branch when compiled, and that branch computes another"
        " value ({difference})"
    )
    cause_text = (
        "{at.first.asks}() is True in compiled code; eager told the same gives the"
        " compiled answer"
    )
    advice_text = (
        "remove the {at.first.asks}() branch, or make both branches compute the same"
        " values; use it only for code that does not change values, such as logging"
    )

    def matches(self, group: WrongGroup) -> bool:
        return bool(group.first.asks)


class OtherForm(WrongAnswer):
    """A compiled output has other memory, strides or `requires_grad` than eager's.

    ## Why
    The values agree, but code after the call can behave differently. A write to an
    output changes an input that shares its memory. `view` fails on other strides.
    Without `requires_grad`, training silently skips a part.

    ## Bad
        y = x * torch.ones(3)      # Inductor of torch 2.13 returns x itself
        y.add_(1)                  # and then this changes x

    ## Good
        y = x.clone()

    ## Fix safety
    A copy, `contiguous()` and `detach()` do not change values.
    """

    code = "NM406"
    message_text = (
        "{at.function} returns a tensor with the same values compiled, but with other"
        " {form.what} than in eager ({difference})"
    )
    cause_text = (
        "the compiler kept the output's values, not its {form.what}: {form.why}"
    )
    _fixes: ClassVar[dict[str, str]] = {
        "memory": (
            "if something writes to that output or input later, write to a copy"
            " (x.clone()) made outside the compiled function"
        ),
        "strides": (
            "call .contiguous() on the output where the layout matters, and leave"
            " torch._inductor.config.keep_output_stride at True"
        ),
        "requires_grad": (
            "call .detach() on an output that must not require a gradient; if a"
            " gradient is missing, isolate the operation in a function marked"
            " @torch.compiler.disable"
        ),
    }

    def matches(self, group: WrongGroup) -> bool:
        return group.first.form is not None

    def words(self, group: WrongGroup) -> dict[str, object]:
        return super().words(group) | {"form": _form(group.first)}

    def severity(self, group: WrongGroup) -> Severity:
        if not any(_form(event).harmful for event in group.events):
            return "low"
        return "medium" if _form(group.first).what == "strides" else "high"

    def difference(self, group: WrongGroup) -> str:
        form = _form(group.first)
        return f"{form.where}: {form.why}"

    def advice(self, group: WrongGroup) -> str:
        return self._fixes[_form(group.first).what]

    def evidence(self, group: WrongGroup) -> Iterable[str]:
        for form in map(_form, group.events[:4]):
            yield f"{form.where}: {form.why}"


def _form(event: WrongAnswerEvent) -> FormDifference:
    assert event.form is not None  # only such events match
    return event.form


class RaisesAtRunTime(Rule[RaisedGroup]):
    """Compiled code raises an error at run time, in a call that eager completes.

    ## Why
    Compilation succeeded: the error comes from the code that the backend returned, or
    from what torch does when it runs that code.

    ## Bad
        torch.compile(f, backend=broken)(x)     # the compiled function raises

    ## Good
        torch.compile(f, backend="aot_eager")(x)     # shows which layer raises

    ## Fix safety
    Another backend gives the same values up to rounding.
    """

    code = "NM407"
    kind = "numerics"
    parts = ("breaks", "baseline")
    reference = torch_pages.REPORTING
    placed = True
    message_text = (
        "compiled code of {at.function} raises at run time, although eager completes"
        " the call: {short}"
    )
    cause_text = "{at.first.error} while compiled code ran: {short}"
    advice_text = (
        'run the call with backend="eager", then "aot_eager", then "inductor": the'
        " first that raises contains the fault; until it is fixed, move the code into"
        " a function marked @torch.compiler.disable"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[RaisedGroup]:
        events = (event for event in facts.of(RaisedEvent) if event.phase is None)
        # Several parts of a check may meet the same failure, at other lines.
        for group in grouped(events, lambda e: (e.error, e.message)):
            yield RaisedGroup(tuple(group), event_place(group[0]), facts)

    def word(self, group: RaisedGroup) -> str:
        return group.first.error

    def words(self, group: RaisedGroup) -> dict[str, object]:
        first = next(iter(group.first.message.strip().splitlines()), "no message")
        return {"short": shorten(f"{group.first.error}: {first}", 160)}

    def evidence(self, group: RaisedGroup) -> Iterable[str]:
        yield shorten(f"{group.first.error}: {group.first.message}", 400)
        yield from stack(group)


class WrongOnce(WrongAnswer):
    """A compiled output was wrong once, and right when the calls ran again.

    ## Why
    Possible causes: a race, memory that is read before it is written, or a kernel that
    autotuning chose by its timing.

    ## Bad
        torch.compile(model, mode="max-autotune")    # chose a kernel that is wrong

    ## Good
        torch.compile(model)                         # the default mode

    ## Fix safety
    Another mode gives the same values up to rounding.
    """

    code = "NM409"
    message_text = (
        "{at.function} computed another value compiled than in eager, and the right one"
        " when it was compiled again"
    )
    cause_text = "not found: no layer of the compiler repeated the wrong answer"
    advice_text = (
        "run the check again; if the finding returns, compile with the default mode and"
        " report it to PyTorch"
    )

    def matches(self, group: WrongGroup) -> bool:
        return True


class StaleAnswer(Answer[StaleGroup]):
    """Base class of the rules for state that is read while tracing and not guarded."""

    kind = "stale_state"
    reference = torch_pages.CONCEPTS
    what: ClassVar[str]

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[StaleGroup]:
        """One group per place and cause."""

        def key(event: StaleAnswerEvent) -> object:
            return event_place(event), event.what, event.name, event.layer

        for group in grouped(facts.of(StaleAnswerEvent), key):
            yield StaleGroup(tuple(group), event_place(group[0]), facts)

    def matches(self, group: StaleGroup) -> bool:
        return bool(group.first.what == self.what)

    def severity(self, group: StaleGroup) -> Severity:
        return "high"

    def words(self, group: StaleGroup) -> dict[str, object]:
        return {"since": self.since(group)}

    def since(self, group: StaleGroup) -> str:
        call = group.first.call
        return f"from call {call} on" if call else "in every call"

    def evidence(self, group: StaleGroup) -> Iterable[str]:
        yield (
            f"the outputs differ from eager's {self.since(group)}; they agree if the"
            " code is compiled again before each call"
        )
        yield from stack(group)

    def symptom(self, group: StaleGroup) -> Symptom | None:
        return Symptom(in_first_call=not group.first.call)


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
    message_text = (
        "{at.function} reads the environment variable {at.first.name}, and compiled"
        " code ignores its changes"
    )
    cause_text = (
        "{at.first.name} is read while tracing and not guarded: its value is a constant"
        " of the compiled code"
    )
    source_severity = "low"
    nodes = (ast.Call, ast.Subscript, ast.Compare)
    calls = 2
    advice_text = (
        "read {at.first.name} from os.environ outside the compiled code and pass the"
        " value as an argument; or call torch.compiler.reset() after each change of"
        " {at.first.name}"
    )

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        if _reads_environment(node, at):
            texts = [n.value for n in walk(node) if isinstance(n, ast.Constant)]
            name = str(texts[0]) if texts else "it"
            yield Match(node, event=StaleAnswerEvent(what=self.what, name=name))


def _reads_environment(node: ast.AST, at: Flow) -> bool:
    if isinstance(node, ast.Call):
        return at.dotted(node.func) in ("os.environ.get", "os.getenv")
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load) and at.dotted(node.value) == "os.environ"
    assert isinstance(node, ast.Compare)
    inside = isinstance(node.ops[0], ast.In | ast.NotIn)
    return inside and at.dotted(node.comparators[0]) == "os.environ"


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
        "{at.first.name}() is called after the module was compiled: compiled code"
        " ignores it, {since}"
    )
    cause_text = (
        "Dynamo traces the hooks that a module has at its first call and does not guard"
        " on them (skip_nnmodule_hook_guards is True)"
    )
    advice_text = (
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
        "{at.function} draws from {at.first.name}, and compiled code ignores"
        " np.random.seed: it draws other numbers than eager"
    )
    cause_text = (
        "{at.first.name} is traced as torch's: it draws from torch's generator and"
        " changes with torch.manual_seed instead"
    )
    advice_text = (
        "draw with torch (torch.rand, torch.randn; seed with torch.manual_seed or pass"
        " a generator), or draw with numpy outside the compiled code and pass the"
        " numbers as an argument"
    )
    nodes = (ast.Call,)
    shown_by = ("NM413", "NM419", "NM404", "GB101", "GB105", "GB115")

    def evidence(self, group: StaleGroup) -> Iterable[str]:
        yield "with another torch.manual_seed the compiled outputs change"

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.Call)
        dotted = at.dotted(node.func) or ""
        if dotted.startswith(("np.random.", "numpy.random.")):
            yield Match(node, event=StaleAnswerEvent(what=self.what, name=dotted))


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
        "{at.first.name}() is assumed to be constant, but its result changes in eager,"
        " {since}"
    )
    cause_text = (
        "assume_constant_result keeps what {at.first.name} returned while tracing;"
        " without it compiled code gives eager's answers"
    )
    advice_text = (
        "remove assume_constant_result from {at.first.name}, or pass its result as an"
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
        "with {at.first.name}, set here, torch runs compiled code that is no longer"
        " valid, {since}"
    )
    cause_text = (
        "{at.first.name} leaves out the guard on what has changed; with all guards"
        " compiled code gives eager's answers"
    )
    advice_text = (
        "drop {at.first.name}, or keep the guards on what changes between calls; or"
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
    advice_text = (
        "pass the value that changes between calls as an argument, or keep it in a"
        " tensor or a module attribute; or call torch.compiler.reset() after each"
        " change"
    )

    def cause(self, group: StaleGroup) -> str:
        return (
            f"what changed before call {group.first.call} is read while tracing and"
            " not guarded: compiled anew, the answers are eager's"
        )
