"""A strategy: a named way to run a target, as data.

`parse` takes a name such as `full:reduce-overhead` or `regional+graph` and returns a
`Strategy`. `planning.py` plans what it compiles in a target, `source_lines.py` writes
it as Python lines to paste, and `applied.py` runs the same lines on a target. Loading
this file does not load torch.

    FORM[+graph][:METHOD][:MODE][:fullgraph][:dynamic, static or marks]
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from torchproof.records import Keywords, Record, TorchConfig, UserError

Form = Literal["eager", "full", "core", "regional", "nested"]

FORMS: tuple[Form, ...] = ("eager", "full", "core", "regional", "nested")
BLOCKS = ("regional", "nested")  # the forms that need the repeated blocks of a model
GRAPH = "graph"  # after a form and a plus: the whole step in one CUDA graph
# The options that each mode sets in Inductor: torch takes a mode or options, not both.
MODE_OPTIONS: dict[str, TorchConfig] = {
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
SHAPES: dict[str, Keywords] = {
    "dynamic": {"dynamic": True},
    "static": {"dynamic": False},
    "marks": {},
}
WORDS = (*MODES, "fullgraph", *SHAPES)


class NotApplicable(UserError):
    """The strategy has nothing to compile in this target, and is skipped."""


@dataclass(frozen=True)
class Strategy(Record):
    """A way to run a target; `arguments` are passed to torch.compile.

    `core` compiles one `method`. `regional` compiles each repeated block alone;
    `nested` compiles the whole model, with code shared by equal blocks. With `marks`,
    sizes that vary from call to call are marked as dynamic before each call of compiled
    code. With `graph`, the whole compiled step is recorded as one CUDA graph per shape
    and replayed. `dynamo` are settings of Dynamo, which hold for the whole process.
    """

    name: str
    form: Form
    arguments: Keywords = field(default_factory=dict, hash=False)
    method: str | None = None
    marks: bool = False
    graph: bool = False
    dynamo: TorchConfig = field(default_factory=dict, hash=False)

    @property
    def compiles(self) -> bool:
        return self.form != "eager"

    @property
    def as_is(self) -> bool:
        """Whether the target runs as it was written."""
        return self.form == "eager" and not self.graph

    @property
    def other_arguments(self) -> Keywords:
        """The arguments that the name does not contain."""
        named = parse(self.name).arguments
        return {k: v for k, v in self.arguments.items() if (k, v) not in named.items()}

    @property
    def in_graph(self) -> Strategy:
        """The strategy that compiles the step inside the CUDA graph."""
        name = self.name.replace(f"+{GRAPH}", "", 1)
        return dataclasses.replace(self, name=name, graph=False)

    @property
    def dynamic(self) -> Literal["auto", "off", "on", "marks"]:
        """How it handles sizes that vary."""
        if self.marks:
            return "marks"
        dynamic = self.arguments.get("dynamic")
        if dynamic is None:
            return "auto"
        return "on" if dynamic else "off"

    @property
    def observes(self) -> bool:
        """Whether planning runs the calls, to find regions and sizes that vary."""
        return (self.form in BLOCKS or self.marks) and not self.graph


def defaults(device: str) -> tuple[str, ...]:
    """The strategies that are measured by default."""
    if device != "cuda":
        return ("eager", "full", "regional")
    recorded = ("full+graph", "regional+graph")
    return ("eager", "full", "full:reduce-overhead", "regional", *recorded)


def parse(text: str) -> Strategy:
    """The strategy with this name; raises a `UserError` that suggests the nearest."""
    head, *words = [part.strip() for part in text.split(":")]
    form, graph = _form(text, head)
    method = None
    if form == "core" and words and _is_path(words[0]):
        method = words.pop(0)
    if form == "eager" and words:
        raise UserError(f"strategy {text!r}: eager takes no further words")
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
        arguments.update(SHAPES.get(word, {}))
    if "fullgraph" in words:
        arguments["fullgraph"] = True
    strategy = Strategy(
        name=text,
        form=form,
        arguments=arguments,
        method=method,
        marks="marks" in words,
        graph=graph,
    )
    return _recordable(strategy)


def _form(text: str, head: str) -> tuple[Form, bool]:
    """The form that a name begins with, and whether it is recorded in a CUDA graph."""
    for form in FORMS:
        if head in (form, f"{form}+{GRAPH}"):
            return form, head != form
    names = (*FORMS, *(f"{form}+{GRAPH}" for form in FORMS))
    raise UserError(f"no strategy {text!r}: {_nearest(head, names)}")


def _recordable(strategy: Strategy) -> Strategy:
    """The strategy; raises a `UserError` if it cannot run inside a CUDA graph."""
    if not strategy.graph:
        return strategy
    label = f"strategy {strategy.name!r}"
    if strategy.marks:
        raise UserError(
            f"{label}: a CUDA graph is recorded for each shape, so there are no sizes"
            " to mark"
        )
    if records_graphs(strategy.arguments):
        culprit = strategy.arguments.get("mode") or "triton.cudagraphs"
        form = f"{strategy.form}+{GRAPH}"
        raise UserError(
            f"{label}: {culprit} records CUDA graphs of its own, and they cannot be"
            f" nested: use {form} or {form}:max-autotune-no-cudagraphs"
        )
    return strategy


def records_graphs(arguments: Keywords) -> bool:
    """Whether Inductor records CUDA graphs itself with these arguments."""
    options = MODE_OPTIONS.get(arguments.get("mode") or "default", {})
    return bool((options | arguments.get("options", {})).get("triton.cudagraphs"))


def with_arguments(strategy: Strategy, **more: Any) -> Strategy:
    """The strategy with further arguments for torch.compile, and the same name.

    With options, a mode is replaced by the options it sets; explicit options win.
    """
    if not strategy.compiles:
        raise UserError(f"{strategy.name}: eager has no arguments for torch.compile")
    if strategy.marks and more.get("dynamic") is not None:
        raise UserError(f"{strategy.name}: marks and dynamic exclude each other")
    arguments = {**strategy.arguments, **more}
    options = {**strategy.arguments.get("options", {}), **more.get("options", {})}
    mode = arguments.get("mode")
    if mode and arguments.get("backend", "inductor") != "inductor":
        raise UserError(f"backend {arguments['backend']} has no mode {mode}")
    if options:
        if mode is not None and mode not in MODES:
            raise UserError(f"mode {mode!r}: {_nearest(mode, MODES)}")
        arguments["options"] = {**MODE_OPTIONS[mode or "default"], **options}
        arguments.pop("mode", None)
    return _recordable(dataclasses.replace(strategy, arguments=arguments))


def _is_path(text: str) -> bool:
    steps = text.split(".")
    return all(step.isidentifier() or step.isdecimal() for step in steps)


def _nearest(word: str, choices: Iterable[str]) -> str:
    names = list(choices)
    near = difflib.get_close_matches(word.replace("_", "-"), names, n=1)
    if near:
        return f"{word!r} is unknown, did you mean {near[0]}?"
    return f"{word!r} is unknown: choose from {', '.join(names)}"
