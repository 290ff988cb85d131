"""NM4xx: compiled outputs that differ from eager's by more than rounding."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import ClassVar, TypeVar

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import user_files
from torchproof.checking.rules.rule import (
    AnyGroup,
    EventGroup,
    Facts,
    Match,
    Rule,
    event_place,
    grouped,
    shorten,
    stack,
)
from torchproof.checking.static import bindings, changes, compiled
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.source import Source, walk
from torchproof.records import (
    AnswerEvent,
    FormDifference,
    RaisedEvent,
    Remedy,
    Setting,
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


def _sources(group: AnyGroup) -> Iterator[Source]:
    """The user's files around a finding, parsed."""
    yield from filter(None, map(changes.source_of, user_files(group)))


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
        """`where` is the expression that causes the difference, or the function."""
        placed = group.first.frames and group.expression
        at = f"`{group.expression}` in {group.function}" if placed else group.function
        return {"where": at, "layer": group.first.layer}

    def advice(self, group: WrongGroup) -> str:
        if self.advice_text:
            return super().advice(group)
        if group.first.frames and group.expression:
            return (
                f"move `{group.expression}` into a function marked"
                " @torch.compiler.disable"
            )
        return (
            f"mark functions that {group.function} calls with @torch.compiler.disable"
            " until the outputs agree, and keep the last mark"
        )

    advice_text = ""

    def evidence(self, group: WrongGroup) -> Iterable[str]:
        numerics = group.first.numerics
        if why := (group.first.value or numerics).get("why"):
            yield f"{numerics.get('where') or 'an output'}: {why}"
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
    A function marked @torch.compiler.disable computes what eager computes, and splits
    the graph. Computing in float64 often helps, too. Report it to PyTorch with a
    minimal program.
    """

    code = "NM401"
    message_text = "{where} computes another value compiled than in eager"
    cause_text = (
        "the code that {layer} generates is wrong for these values: the layers before"
        " it give eager's answers"
    )

    def matches(self, group: WrongGroup) -> bool:
        return (group.first.layer or "").startswith(_GENERATED)

    def advice(self, group: WrongGroup) -> str:
        if (group.first.gives or "").startswith("torch.uint"):
            return "convert through a signed type: .to(torch.int64).to(torch.uint8)"
        return super().advice(group)


class EarlierLayer(WrongAnswer):
    """Compiled outputs are wrong before any code is generated.

    ## Why
    Tracing, functionalisation or a decomposition changes what the program computes.

    ## Bad
        torch.compile(f, backend="aot_eager")     # differs from f

    ## Good
        # move the wrong part of f into a function marked @torch.compiler.disable

    ## Fix safety
    A function marked @torch.compiler.disable computes what eager computes. Report it to
    PyTorch with a minimal program.
    """

    code = "NM402"
    reference = torch_pages.REPORTING
    message_text = "{where} computes another value compiled: {layer} changes it"
    cause_text = (
        "{layer} is the first layer that is wrong; the layers before it give eager's"
        " answers"
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
    Eager computes the same values. torch.library.opcheck tests the declaration. An
    operator that changes and returns a clone needs no declaration.
    """

    code = "NM403"
    reference = torch_pages.CUSTOM_OPERATORS
    message_text = "{where} calls {op}, which changes {names} undeclared"
    cause_text = (
        "{op} is declared not to change {names}; from {layer} on the compiler relies on"
        " that"
    )
    advice_text = "declare what {op} changes where it is defined: mutates_args={listed}"

    def matches(self, group: WrongGroup) -> bool:
        return bool(group.first.undeclared)

    def words(self, group: WrongGroup) -> dict[str, object]:
        undeclared = group.first.undeclared
        listed = "".join(f'"{name}", ' for name in undeclared)
        return super().words(group) | {
            "names": " and ".join(undeclared),
            "op": group.first.operation,
            "listed": f"({listed.rstrip()})",
        }

    def edit(self, group: WrongGroup) -> Remedy | None:
        for source in _sources(group):
            for call in source.of(ast.Call):
                given = next(
                    (k for k in call.keywords if k.arg == "mutates_args"), None
                )
                name = compiled.literal(call.args[0]) if call.args else None
                if given is None or name is None or name != group.first.operation:
                    continue
                known = map(compiled.literal, getattr(given.value, "elts", ()))
                names = [*filter(None, known), *group.first.undeclared]
                listed = "".join(f'"{each}", ' for each in names).rstrip()
                title = f"declare what {name} changes: mutates_args=({listed})"
                return changes.edit(title, source, {given.value: f"({listed})"})
        return None


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
        "leave it: it is harmless; torch._inductor.config.fallback_random = True draws"
        " eager's numbers, at the cost of speed"
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
    Only the author knows which branch is right. The check is for code that changes no
    value, such as logging.
    """

    code = "NM405"
    message_text = "{where} takes another branch compiled, with another value"
    cause_text = (
        "{at.first.asks}() is True in compiled code; eager told the same gives the"
        " compiled answer"
    )
    advice_text = "let both branches of `{at.expression}` compute the same values"

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
    A copy, `contiguous()` and `detach()` do not change values. Where a gradient is
    missing, a function marked @torch.compiler.disable keeps it. The setting
    torch._inductor.config.keep_output_stride keeps strides, unless it is switched off.
    """

    code = "NM406"
    message_text = (
        "an output of {at.function} has other {form.what} compiled than eager"
    )
    cause_text = "the compiled output has eager's values, but {form.why}"
    _advice: ClassVar[dict[str, str]] = {
        "memory": (
            "before something writes to this output or to the argument, copy the output"
            " outside {at.function}: clone()"
        ),
        "strides": "call .contiguous() on the output of {at.function} before its layout"
        " matters, for instance to view()",
        "requires_grad": (
            "move the operation that gives this output into a function marked"
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

    def advice(self, group: WrongGroup) -> str:
        return self.say(self._advice[_form(group.first).what], group)

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
    Another backend gives the same values up to rounding. Of "eager", "aot_eager" and
    "inductor", the first that raises has the fault.
    """

    code = "NM407"
    kind = "numerics"
    parts = ("breaks", "baseline")
    reference = torch_pages.REPORTING
    placed = True
    message_text = (
        "compiled code of {at.function} raises {at.first.error}, and eager does not"
    )
    cause_text = "while compiled code ran: {short}"
    advice_text = (
        "mark {at.function} with @torch.compiler.disable until the backend that raises"
        " is fixed"
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
        return {"short": shorten(f"{group.first.error}: {first}", 130)}

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
        "{at.function} computed another value than eager, but not when repeated"
    )
    cause_text = "not found: no layer of the compiler repeated the wrong answer"
    advice_text = (
        "run the check again; if the finding returns, compile with the default mode and"
        " report it to PyTorch"
    )


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

    def words(self, group: StaleGroup) -> dict[str, object]:
        call = group.first.call
        since = f"from call {call} on" if call else "in every call"
        return {"since": since, "name": group.first.name, "call": call}

    def evidence(self, group: StaleGroup) -> Iterable[str]:
        yield self.say(
            "the outputs differ from eager's {since}; they agree if the code is"
            " compiled again before each call",
            group,
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
    Passing the value is safe. A new value recompiles once. torch.compiler.reset() after
    each change helps, too.
    """

    code = "NM411"
    source_text = (
        "{at.function} would keep the value that `{at.expression}` had at trace time"
    )
    what = "environment"
    message_text = (
        "{at.function} ignores changes of the environment variable {at.first.name}"
    )
    cause_text = (
        "{at.first.name} is read while tracing and not guarded: its value is a constant"
        " of the compiled code"
    )
    source_severity = "low"
    nodes = (ast.Call, ast.Subscript, ast.Compare)
    calls = 2
    advice_text = (
        "read {at.first.name} outside the compiled code, and pass its value as an"
        " argument of {at.function}"
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
    it. With guards on hooks, each new hook recompiles once; torch._dynamo.reset() after
    it does the same.
    """

    code = "NM412"
    reference = torch_pages.MODULES
    what = "hook"
    settings = (Setting("dynamo.skip_nnmodule_hook_guards", False),)
    setting_cures = True
    message_text = (
        "compiled code ignores {name}(), which is called after compiling, {since}"
    )
    cause_text = (
        "Dynamo traces the hooks that a module has at its first call, and does not"
        " guard on them by default"
    )


class NumpySeed(StaleAnswer):
    """Compiled code ignores numpy's seed.

    ## Why
    Dynamo replaces np.random calls with torch calls, which draw from torch's generator.

    ## Bad
        noise = np.random.randn(3)               # in forward

    ## Good
        noise = torch.randn(3)                   # seeded with torch.manual_seed

    ## Fix safety
    The random numbers differ, their distribution is the same. Drawing outside the
    compiled code keeps numpy's numbers.
    """

    code = "NM413"
    source_text = (
        "`{at.expression}` would draw from torch instead of numpy, or break the graph"
    )
    reference = torch_pages.RANDOMNESS
    what = "numpy_seed"
    message_text = (
        "{at.function} draws {name} from torch when compiled: np.random.seed has no"
        " effect"
    )
    cause_text = (
        "{at.first.name} is traced as torch's: it draws from torch's generator, which"
        " torch.manual_seed seeds"
    )
    advice_text = (
        "draw with {at.first.name} outside the compiled code, and pass the numbers to"
        " {at.function}"
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
    Without the decorator Dynamo traces the function and guards on its inputs. Passing
    its result as an argument is safe, too.
    """

    code = "NM414"
    what = "constant_result"
    message_text = "{name}() is marked as constant, but its result changes {since}"
    cause_text = (
        "compiled code keeps what {name} returned while tracing; without"
        " assume_constant_result it gives eager's answers"
    )
    advice_text = "remove assume_constant_result from {name}"

    def edit(self, group: StaleGroup) -> Remedy | None:
        for source in _sources(group):
            for function in source.of(ast.FunctionDef):
                own = [source.dotted(each) or "" for each in function.decorator_list]
                marks = [d.endswith(".assume_constant_result") for d in own]
                if function.name == group.first.name and any(marks):
                    mark = function.decorator_list[marks.index(True)]
                    title = f"remove assume_constant_result from {function.name}"
                    return changes.removed(title, source, mark)
        return None


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
    Checking all guards takes some time in each call. torch.compiler.reset() after each
    change works without them.
    """

    code = "NM415"
    reference = torch_pages.GUARDS
    what = "guards"
    message_text = (
        "with {name}, torch runs compiled code that is not valid any more, {since}"
    )
    cause_text = (
        "{name} leaves out the guard on what has changed; with all guards compiled code"
        " gives eager's answers"
    )
    advice_text = "remove {name}, so that torch checks all guards"

    def edit(self, group: StaleGroup) -> Remedy | None:
        frame, name = group.frame, group.first.name
        source = changes.source_of(frame.file) if frame else None
        if frame is None or source is None:
            return None
        title = f"remove {name}"
        for call in source.of(ast.Call):
            if not call.lineno <= frame.line <= (call.end_lineno or 0):
                continue
            given = {each.arg: each.value for each in call.keywords}
            if name in given:
                return changes.without_keyword(title, source, call, name)
            options: ast.AST | None = given.get("options")
            if isinstance(options, ast.Name):
                options = bindings.of(source).meaning(options)
            if isinstance(options, ast.Dict):
                pairs = zip(options.keys, options.values, strict=True)
                kept = [
                    f"{changes.code(source, key)}: {changes.code(source, value)}"
                    for key, value in pairs
                    if key is not None and compiled.literal(key) != name
                ]
                if len(kept) == len(options.keys) - 1:
                    return changes.edit(
                        title, source, {options: f"{{{', '.join(kept)}}}"}
                    )
        return None


class OtherStaleState(StaleAnswer):
    """Compiled code does not notice a change of something that it depends on.

    ## Why
    Dynamo read the value while tracing, and no guard checks it again.

    ## Bad
        scale = config.read()            # in forward; changes between calls

    ## Good
        def forward(self, x, scale): ...

    ## Fix safety
    Passing a value is safe, and so is keeping it in a tensor or in an attribute of the
    module. A new value may recompile once. torch.compiler.reset() after each change
    works without either.
    """

    code = "NM419"
    what = "other"
    message_text = (
        "{at.function} computes the value of an earlier call when compiled, {since}"
    )
    cause_text = (
        "what changed before call {call} is read while tracing and not guarded:"
        " compiled anew, the answers are eager's"
    )
    advice_text = "pass what changes before call {call} to {at.function} as an argument"
