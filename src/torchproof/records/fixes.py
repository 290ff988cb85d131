"""What removes a finding, and what `fix` proposes, proves and delivers, as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torchproof.records.mappings import JsonObject
from torchproof.records.schema import Record

Tier = Literal["safe", "unsafe", "suggested"]
TIERS: tuple[Tier, ...] = ("safe", "unsafe", "suggested")
_NEEDS_UNSAFE = "--unsafe allows it"  # the end of such a reason in older runs
FixStatus = Literal["verified", "applied", "rejected", "suggested"]


@dataclass(frozen=True)
class Replacement(Record):
    """Consecutive lines of a file, and the lines that replace them.

    `line` is where they began when the edit was drafted; earlier edits may move them.
    Without `old`, the new lines are inserted before `line`, below the lines `below`.
    `at` is their line in the file itself; None if an earlier edit wrote them.
    """

    file: str
    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    at: int | None = None
    below: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting(Record):
    """A setting of the compiler, or an argument of torch.compile.

    `name` is `dynamo.NAME` or `inductor.NAME`, a setting of torch._dynamo.config or
    torch._inductor.config, `compiler.NAME`, one of torch.compiler.config, or
    `compile.NAME`, an argument of torch.compile. If the setting is a set, `value` is
    the name of the function to add: `builtins.print`, and `module` what has to be
    imported for it.
    """

    name: str
    value: bool | int | str
    module: str = ""

    @property
    def code(self) -> str:
        """The setting as a line of Python that works alone, or as an argument."""
        return "; ".join(self.lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """The import that the setting needs, if any, and the setting."""
        return (f"import {self.module}",) * bool(self.module) + (self._assignment,)

    @property
    def _assignment(self) -> str:
        group, _, name = self.name.partition(".")
        if group == "compile":
            return f"{name}={self.value!r}"
        if group == "compiler":
            return f"torch.compiler.config.{name} = {self.value!r}"
        if isinstance(self.value, str):
            function = self.value.removeprefix("builtins.")
            return f"torch._{group}.config.{name}.add({function})"
        return f"torch._{group}.config.{name} = {self.value!r}"


@dataclass(frozen=True)
class Mark(Record):
    """A dimension of an argument that is marked before the compiled call.

    Unbacked sizes with the same `shape_id` are equal in every call.
    """

    argument: str  # the name of a parameter, then a path: `batch['ids']`
    dimension: int
    how: Literal["mark_dynamic", "maybe_mark_dynamic", "mark_unbacked"]
    shape_id: str | None = None

    @property
    def code(self) -> str:
        where = f"{self.argument}, {self.dimension}"
        if self.how != "mark_unbacked":
            return f"torch._dynamo.{self.how}({where})"
        same = f', shape_id="{self.shape_id}"' if self.shape_id else ""
        return f"torch._dynamo.decorators.mark_unbacked({where}{same})"


def marking(marks: Sequence[Mark]) -> str:
    """The marks as one line of Python: several of one kind as a loop."""
    if len(marks) < 3 or any(mark.shape_id for mark in marks):
        return "; ".join(mark.code for mark in marks)
    hows, dims = {m.how for m in marks}, {m.dimension for m in marks}
    if len(hows) > 1:
        return "; ".join(mark.code for mark in marks)
    if len(dims) > 1:
        pairs = ", ".join(f"({m.argument}, {m.dimension})" for m in marks)
        return f"for t, dim in ({pairs}): torch._dynamo.{hows.pop()}(t, dim)"
    names = ", ".join(mark.argument for mark in marks)
    return f"for t in ({names}): torch._dynamo.{hows.pop()}(t, {dims.pop()})"


@dataclass(frozen=True)
class Remedy(Record):
    """The one way to remove a finding that is known; its kind says which field has it.

    `edit` and `patch` have replacements, of the user's files and of a library's. Marks
    are set all together. `upgrade` has the first version of torch that needs nothing
    else. `none` has no edit: `why` says what a person can do, or what it costs.

    Where the program has a line for a setting or a mark, the replacements insert it.

    What removes an effect are the remedies of its causes: `of` has the identities of
    these findings, which have the data. Its kind is theirs.
    """

    kind: Literal["edit", "setting", "mark", "patch", "upgrade", "none"]
    replacements: tuple[Replacement, ...] = ()
    settings: tuple[Setting, ...] = ()
    marks: tuple[Mark, ...] = ()
    version: str | None = None
    why: str = ""
    title: str = ""  # what an edit or a patch does, or where marks go
    tier: Tier = "safe"
    of: tuple[str, ...] = ()
    other: JsonObject = field(default_factory=dict, hash=False)

    @property
    def text(self) -> str:
        """The remedy in one sentence without its full stop."""
        code = "; ".join(s.code for s in self.settings) or marking(self.marks)
        is_argument = any(s.name.startswith("compile.") for s in self.settings)
        if self.title:
            return self.title
        match self.kind:
            case "setting" if is_argument:
                return f"pass {code} to torch.compile"
            case "setting" | "mark":
                return f"before the first compiled call: {code}"
            case "upgrade":
                return f"upgrade to torch {self.version}, which handles this"
        return self.why


@dataclass(frozen=True)
class Overlay(Record):
    """Edits that a child process applies in memory, before it loads the target."""

    texts: Mapping[str, str] = field(default_factory=dict)  # by absolute path
    settings: tuple[Setting, ...] = ()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Receipt(Record):
    """What the proof of a fix measured, before it and after."""

    breaks: tuple[int | None, int | None]
    recompiles: tuple[int | None, int | None]
    graphs: tuple[int | None, int | None]
    outputs: str  # the verdict on outputs, gradients, changed inputs and buffers
    max_rel_error: float | None
    compared: int  # values compared, over all calls
    unseen_inputs: int  # variations of the inputs on which both versions agree
    exceptions: int  # those of them that both refuse, with the same exception
    backend: str  # what the compiled outputs were computed with
    speed: float | None = None  # time before / time after; None: not measured
    speed_low: float | None = None
    speed_high: float | None = None
    by_script: bool = False  # the whole script ran, and no other inputs
    other: JsonObject = field(default_factory=dict, hash=False)

    @property
    def text(self) -> str:
        """The figures in one sentence."""

        def change(name: str, pair: tuple[int | None, int | None]) -> str:
            before, after = ("-" if each is None else str(each) for each in pair)
            return f"{name} {before} -> {after}"

        figures = [
            change("breaks", self.breaks),
            change("recompiles", self.recompiles),
            change("graphs", self.graphs),
            self._outputs_text,
            "the whole script ran"
            if self.by_script
            else f"{self.unseen_inputs} other inputs agree",
        ]
        if self.exceptions:
            figures.append(f"{self.exceptions} of them raise the same exception")
        if self.speed is not None:
            figures.append(f"speed with all fixes: {self._speed_text}")
        return "; ".join(figures)

    @property
    def _outputs_text(self) -> str:
        if self.outputs != "random":
            return f"{self.compared} values {self.outputs} ({self.backend})"
        return (
            f"{self.compared} values equal in eager; compiled ({self.backend}), other"
            " random numbers are drawn"
        )

    @property
    def _speed_text(self) -> str:
        """The ratio with its interval, or that it is not significant."""
        low, high = self.speed_low, self.speed_high
        if low is None or high is None:
            return "not significant (too few rounds)"
        interval = f"({low:.2f} to {high:.2f})"
        if low <= 1 <= high:
            return f"no significant difference {interval}"
        return f"{self.speed:.2f}x {interval}"


@dataclass(frozen=True)
class Fix(Record):
    """An edit for findings, with the proof or the reason why it was rejected."""

    title: str
    tier: Tier
    status: FixStatus
    codes: tuple[str, ...]
    findings: tuple[str, ...] = ()  # the identities of the findings it cures
    file: str | None = None
    line: int | None = None
    function: str | None = None
    owner: str | None = None
    replacements: tuple[Replacement, ...] = ()
    settings: tuple[Setting, ...] = ()
    marks: tuple[Mark, ...] = ()
    diff: str = ""
    why: str = ""
    refused: Literal["tier"] | None = None  # why it was rejected: --unsafe allows it
    receipt: Receipt | None = None
    written_to: str | None = None  # the file or folder that has it, if it is applied
    other: JsonObject = field(default_factory=dict, hash=False)

    @classmethod
    def upgraded(cls, values: JsonObject, plain: JsonObject) -> None:
        """Older records say only in words that a fix needs `--unsafe`."""
        if str(plain.get("why", "")).endswith(_NEEDS_UNSAFE):
            values.setdefault("refused", "tier")

    @property
    def code(self) -> tuple[str, ...]:
        """The settings and marks as lines of Python, arguments as a call."""
        arguments = [s.code for s in self.settings if s.name.startswith("compile.")]
        others = [s for s in self.settings if not s.name.startswith("compile.")]
        lines = list(dict.fromkeys(line for s in others for line in s.lines))
        lines += [mark.code for mark in self.marks]
        if arguments:
            lines.append(f"torch.compile(model, {', '.join(arguments)})")
        return tuple(lines)
