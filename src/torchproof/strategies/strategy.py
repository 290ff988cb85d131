"""A strategy: a named way to run a target, that applies itself and prints itself.

In comes a name such as `full:reduce-overhead` or `regional+graph`; out come the lines
to paste and, in the process that has the target, the target compiled by those very
lines. Loading this file does not load torch.

    FORM[+graph][:METHOD][:MODE][:fullgraph][:dynamic, static or marks]
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torchproof.records import UserError
from torchproof.strategies import source_lines
from torchproof.strategies.plan import Plan

if TYPE_CHECKING:
    from torchproof.strategies.applied import Applied

Form = Literal["eager", "full", "core", "regional", "nested"]

FORMS: tuple[Form, ...] = ("eager", "full", "core", "regional", "nested")
BLOCKS = ("regional", "nested")  # the forms that need the repeated blocks of a model
GRAPH = "graph"  # after a form and a plus: the whole step in one CUDA graph
# What each mode switches on in Inductor: torch takes a mode or options, not both.
MODE_OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"triton.cudagraphs": True},
    "max-autotune": {
        "max_autotune": True,
        "triton.cudagraphs": True,
        "coordinate_descent_tuning": True,
    },
    "max-autotune-no-cudagraphs": {
        "max_autotune": True,
        "coordinate_descent_tuning": True,
    },
}
MODES = tuple(MODE_OPTIONS)
SHAPES: dict[str, dict[str, Any]] = {
    "dynamic": {"dynamic": True},
    "static": {"dynamic": False},
    "marks": {},
}
WORDS = (*MODES, "fullgraph", *SHAPES)


class NotApplicable(UserError):
    """The strategy has nothing to compile in this target: its arm is skipped."""


@dataclass(frozen=True)
class Strategy:
    """`arguments` are those of torch.compile; `method` is what `core` compiles.

    `regional` compiles each repeated block alone, `nested` the whole, in which a block
    is compiled once and called many times. With `marks`, sizes that vary from call to
    call are marked right before each entry into compiled code. With `graph`, the whole
    step, compiled in this way, is recorded in one CUDA graph for each shape and
    replayed.
    """

    name: str
    form: Form
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    method: str | None = None
    marks: bool = False
    graph: bool = False

    @property
    def compiles(self) -> bool:
        return self.form != "eager"

    @property
    def as_is(self) -> bool:
        """Whether the target runs as it was written."""
        return self.form == "eager" and not self.graph

    @property
    def beside_name(self) -> dict[str, Any]:
        """The arguments that the name does not stand for."""
        told = parse(self.name).arguments
        return {k: v for k, v in self.arguments.items() if (k, v) not in told.items()}

    @property
    def in_graph(self) -> Strategy:
        """How the step is compiled that is recorded in a CUDA graph."""
        name = self.name.replace(f"+{GRAPH}", "", 1)
        return dataclasses.replace(self, name=name, graph=False)

    @property
    def dynamic(self) -> Literal["auto", "off", "on", "marks"]:
        """What is done about sizes that vary."""
        if self.marks:
            return "marks"
        given = self.arguments.get("dynamic")
        return "auto" if given is None else "on" if given else "off"

    @property
    def observes(self) -> bool:
        """Whether its plan runs the calls: regions and varying sizes show only then."""
        return (self.form in BLOCKS or self.marks) and not self.graph

    def plan(
        self,
        fn: Callable[..., Any],
        calls: Sequence[Any],
        before: Callable[[int], None] | None = None,
    ) -> Plan:
        """What of a target gets compiled.

        Where the strategy `observes`, the calls run once in eager, each after
        `before(index)`, and leave their marks on the target's state: so plan with one
        target and apply to another.
        """
        from torchproof.strategies import planning

        return planning.plan(self, fn, calls, before=before)

    def apply(
        self,
        fn: Callable[..., Any],
        calls: Sequence[Any],
        plan: Plan | None = None,
        *,
        train: bool = False,
    ) -> Applied:
        """The target compiled by the lines of `source`, which are run as they are."""
        from torchproof.strategies import applied

        plan = self.plan(fn, calls) if plan is None else plan
        return applied.apply(self, fn, plan, calls=calls, train=train)

    def source(
        self, name: str = "model", plan: Plan | None = None, *, train: bool = False
    ) -> str:
        """The lines to paste, for a target of this name.

        Without a plan, of a strategy that `observes`, a comment that says so. A graph
        of a training step, `train`, holds its loss and backward as well.
        """
        if self.as_is:
            return f"# {name} runs as it is"
        if plan is None and self.observes:
            return f"# {self.name}: its lines are known once the target has run"
        if self.graph:
            return source_lines.recorded(self, name, plan or Plan(), train=train)
        return source_lines.written(self, name, plan or Plan())

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Strategy:
        return cls(**plain)


def defaults(device: str) -> tuple[str, ...]:
    """The strategies that are measured where none are named."""
    if device != "cuda":
        return ("eager", "full", "regional")
    recorded = ("full+graph", "regional+graph")
    return ("eager", "full", "full:reduce-overhead", "regional", *recorded)


def parse(text: str) -> Strategy:
    """A strategy by its name, or a `UserError` with the nearest name there is."""
    head, *words = [part.strip() for part in text.split(":")]
    form, graph = _form(text, head)
    method = None
    if form == "core" and words and _is_path(words[0]):
        method = words.pop(0)
    if form == "eager" and words:
        raise UserError(f"strategy {text!r}: eager takes nothing after it")
    unknown = [word for word in words if word not in WORDS]
    if unknown:
        raise UserError(f"strategy {text!r}: {_nearest(unknown[0], WORDS)}")
    for kind in (MODES, tuple(SHAPES)):
        if len(set(words) & set(kind)) > 1:
            raise UserError(f"strategy {text!r}: at most one of {', '.join(kind)}")
    arguments: dict[str, Any] = {}
    for word in words:
        if word in MODES and word != "default":
            arguments["mode"] = word
        arguments |= SHAPES.get(word, {})
    if "fullgraph" in words:
        arguments["fullgraph"] = True
    marks = "marks" in words
    return _recordable(Strategy(text, form, arguments, method, marks, graph))


def _form(text: str, head: str) -> tuple[Form, bool]:
    """The form that a name begins with, and whether it is recorded in a graph."""
    for form in FORMS:
        if head in (form, f"{form}+{GRAPH}"):
            return form, head != form
    known = (*FORMS, *(f"{form}+{GRAPH}" for form in FORMS))
    raise UserError(f"no strategy {text!r}: {_nearest(head, known)}")


def _recordable(strategy: Strategy) -> Strategy:
    """The strategy, unless a CUDA graph around it cannot be."""
    if not strategy.graph:
        return strategy
    told = f"strategy {strategy.name!r}"
    if strategy.marks:
        raise UserError(
            f"{told}: a graph is recorded for each shape, there are no sizes to mark"
        )
    if records_graphs(strategy.arguments):
        culprit = strategy.arguments.get("mode") or "triton.cudagraphs"
        form = f"{strategy.form}+{GRAPH}"
        raise UserError(
            f"{told}: {culprit} records CUDA graphs of its own, and a graph cannot be"
            f" recorded while another is: use {form} or"
            f" {form}:max-autotune-no-cudagraphs"
        )
    return strategy


def records_graphs(arguments: Mapping[str, Any]) -> bool:
    """Whether Inductor, given these arguments, records CUDA graphs itself."""
    options = MODE_OPTIONS.get(arguments.get("mode") or "default", {})
    return bool((options | arguments.get("options", {})).get("triton.cudagraphs"))


def with_arguments(strategy: Strategy, **more: Any) -> Strategy:
    """The strategy with further arguments for torch.compile; its name stays.

    A mode that meets options becomes the options it stands for; options that are given
    win over those.
    """
    if not strategy.compiles:
        raise UserError(f"{strategy.name}: eager has no arguments for torch.compile")
    if strategy.marks and more.get("dynamic") is not None:
        raise UserError(f"{strategy.name}: marks decide what is dynamic")
    arguments = {**strategy.arguments, **more}
    options = {**strategy.arguments.get("options", {}), **more.get("options", {})}
    mode = arguments.get("mode")
    if mode and arguments.get("backend", "inductor") != "inductor":
        raise UserError(f"backend {arguments['backend']} has no mode {mode}")
    if options:
        if mode is not None and mode not in MODES:
            raise UserError(f"mode {mode!r}: {_nearest(mode, MODES)}")
        arguments["options"] = MODE_OPTIONS[mode or "default"] | options
        arguments.pop("mode", None)
    return _recordable(dataclasses.replace(strategy, arguments=arguments))


def _is_path(text: str) -> bool:
    steps = text.split(".")
    return all(step.isidentifier() or step.isdecimal() for step in steps)


def _nearest(word: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(word.replace("_", "-"), names, n=1)
    if near:
        return f"{word!r} is unknown, did you mean {near[0]}?"
    return f"{word!r} is unknown: choose from {', '.join(names)}"
