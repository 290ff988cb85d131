"""The base class of all rules, and the events and facts that a rule gets.

A rule is a class. Its docstring is the documentation that `torchproof rule` prints.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from torchproof.checking.rules import keys, torch_pages
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.line_facts import LineFacts, facts_at
from torchproof.checking.static.source import Source, ignores
from torchproof.records import (
    BreakEvent,
    CompileEvent,
    Event,
    Finding,
    Frame,
    LimitEvent,
    Mark,
    Observation,
    Place,
    Remedy,
    RuleText,
    Setting,
    Severity,
    Status,
    Symptom,
    WrapperEvent,
    blame,
    cells,
    definition,
    is_frame_of,
    place_of,
    qualified_name,
    shown,
    source_line,
    user_frame,
    whose,
)

R = TypeVar("R", bound="Rule[Any]")
E = TypeVar("E", bound=Event)
E_co = TypeVar("E_co", bound=Event, covariant=True)
G = TypeVar("G", bound="EventGroup[Any]")
# What ends the tracing of a function.
Interruption = BreakEvent | LimitEvent
SECTIONS = ("Why", "Bad", "Good", "Fix safety")
MESSAGE, PROSE = 120, 160  # characters that a message and a remedy may have


@dataclass(frozen=True)
class Facts:
    """What rules may use of the whole run."""

    observation: Observation
    rules: tuple[AnyRule, ...] = ()  # all rules, specific ones before general ones

    @property
    def calls(self) -> int | None:
        return self.observation.calls

    @property
    def complete(self) -> bool:
        """Whether the program ran to its end; else an absent event proves nothing."""
        return self.observation.ending == "finished" and not self.observation.error

    @property
    def factory_command(self) -> str:
        """The command that checks the factory of a script; empty if it has none."""
        first, *others = self.observation.factories or ("",)
        more = f" (or {', '.join(others)})" if others else ""
        return f"torchproof check {first}{more}" if first else ""

    def of(self, *kinds: type[E]) -> tuple[E, ...]:
        """The events of these classes, in the order in which they happened."""
        return self.observation.of(*kinds)

    @property
    def wrappers(self) -> tuple[WrapperEvent, ...]:
        """The calls of torch.compile."""
        return self.of(WrapperEvent)

    @functools.cached_property
    def entries(self) -> tuple[Frame, ...]:
        """The functions that the program compiles, and wrappers around them."""
        codes = [code for w in self.wrappers for code in (w.function, *w.around)]
        return tuple(code for code in codes if code is not None)

    def first(self, family: type[R], group: AnyGroup) -> R | None:
        """The first rule of a family that matches a group."""
        members = (rule for rule in self.rules if isinstance(rule, family))
        return next((rule for rule in members if rule.matches(group)), None)

    @functools.cached_property
    def separated_by(self) -> dict[int, tuple[Event, Interruption | None]]:
        """The answers of `interruptions.separated_by` so far, by the event's id.

        With the event, which is kept so that no other one gets its id.
        """
        return {}

    @functools.cached_property
    def compiled_callables(self) -> dict[tuple[str, int, str], Frame]:
        """The compiled function behind each code object that wraps one."""
        return {
            _code(around): event.function
            for event in self.wrappers
            if event.function is not None
            for around in (*event.around, event.function)
        }

    @functools.cached_property
    def compile_arguments(self) -> dict[str, str]:
        """The arguments of torch.compile on which all its calls agree."""
        return self.arguments_of(None)

    def arguments_of(self, function: Frame | None) -> dict[str, str]:
        """Those of the calls that compiled a function; of all calls, if none did."""
        own = [w for w in self.wrappers if _compiles(w, function)]
        calls = [w.arguments for w in own or self.wrappers]
        return {
            k: v
            for k, v in (calls[0] if calls else {}).items()
            if all(arguments.get(k) == v for arguments in calls)
        }


_READABLE = {"user", "library"}


def _compiles(wrapper: WrapperEvent, function: Frame | None) -> bool:
    codes = [*wrapper.around, *filter(None, [wrapper.function])]
    return any(is_frame_of(code, function) for code in codes)


def _code(frame: Frame) -> tuple[str, int, str]:
    return frame.file, frame.line, frame.function


@dataclass(frozen=True)
class EventGroup(Generic[E_co]):
    """The events of one finding: one cause at one place.

    In source that has not run, `code` is the code at the place, and `around` its
    function.
    """

    events: tuple[E_co, ...]
    place: Place
    facts: Facts
    _: KW_ONLY
    count: int | None = None
    steps: int | None = None
    code: str | None = None
    around: str | None = None
    named: Mapping[str, object] = field(default_factory=dict)  # of a `Match`
    width: int = 70  # characters of the code in texts

    @property
    def first(self) -> E_co:
        return self.events[0]

    @property
    def frame(self) -> Frame | None:
        return self.place.frame

    @functools.cached_property
    def line(self) -> LineFacts:
        """What the source says about the code at the place."""
        frame = self.frame
        if frame is None:
            return LineFacts()
        return facts_at(frame.file, frame.line, self.expression)

    @property
    def expression(self) -> str:
        """The code that the traceback underlines at the place.

        If only torch's own code is involved, there is no place; then it is torch's
        code.
        """
        if self.code is not None:
            return shorten(self.code, self.width)
        frames = self.first.frames
        frame = self.frame or (frames[-1] if frames else None)
        return "" if frame is None else expression_of(frame, self.width)

    @property
    def what(self) -> str:
        """The expression at the place, else the function."""
        return f"`{self.expression}`" if self.expression else self.function

    @property
    def compile_arguments(self) -> dict[str, str]:
        """The arguments of torch.compile for the function of the event."""
        return self.facts.arguments_of(self.first.function)

    @property
    def times(self) -> str:
        return plural(self.count or 1, "time")

    @property
    def function(self) -> str:
        """The qualified name of the user's function at the place."""
        if self.around is not None:
            return self.around
        if self.frame is not None:
            return qualified_name(self.frame)
        compiled = {event.name for event in self.facts.wrappers}
        if len(compiled) == 1:
            return str(compiled.pop())
        return self.first.function.function if self.first.function else "the target"

    @property
    def compiled(self) -> str:
        """The function whose graph it is, by the name its author gave it."""
        function = self.first.function
        if function is None:
            return self.function
        entry = self.facts.compiled_callables.get(_code(function))
        if entry is None and whose(function.file) not in _READABLE:
            return self._nearest_readable(function)
        return qualified_name(definition(entry or function))

    def _nearest_readable(self, function: Frame) -> str:
        """The nearest user or library function around generated code."""
        frames = self.first.frames
        inside = [i for i, f in enumerate(frames) if f.file == function.file]
        start = inside[0] if inside else 0
        around = (*frames[start:], *reversed(frames[:start]))
        readable = [frame for frame in around if whose(frame.file) in _READABLE]
        if readable:
            return qualified_name(readable[0])
        if isinstance(self.first, CompileEvent) and self.first.entry is not None:
            return qualified_name(definition(self.first.entry))
        names = {event.name for event in self.facts.wrappers}
        return str(names.pop()) if len(names) == 1 else "the compiled callable"

    @property
    def often(self) -> str:
        """How often it happened, if it was counted."""
        calls = self.facts.calls
        if self.steps is None or not calls:
            return ""
        if self.steps >= calls:
            each = "in every call" if calls > 1 else "in the only call"
            times = f" ({self.count} times)" if (self.count or 0) > calls else ""
            return f"{each}{times}"
        return f"in {self.steps} of {calls} calls"


AnyGroup = EventGroup[Event]


@dataclass(frozen=True)
class Match:
    """A place in the source where a rule suspects its pattern.

    Where a text is empty, the rule's own text applies.
    """

    node: ast.AST
    message: str = ""
    cause: str = ""
    advice: str = ""
    severity: Severity | None = None  # None: `source_severity` of the rule
    event: Event | None = None  # what a run would show; None: `unseen` of the rule
    key: str = ""  # empty: the code of the node
    words: Mapping[str, object] = field(default_factory=dict)  # for the rule's texts
    remedy: Remedy | None = None  # an edit, where the source alone shows it


@dataclass(frozen=True)
class Fixed:
    """A form of a rule's pattern that torch handles from a version on.

    `what` names the form in the documentation. `sign` is a pattern in the code at the
    place, or in what torch says about it, that shows this form; None: nothing shows it.
    """

    version: str
    what: str
    sign: str | None = None
    how: str = "traces this"


class Rule(Generic[G]):
    """Recognises one bad pattern, in the events of a run and in source code.

    In a run: rules that inherit one `groups` method are a family. A group goes to the
    first of them that matches, in the order of the list of rules. In the source: `look`
    gets the nodes of compiled code, `read` whole files. In the texts, `{at.expression}`
    is the code and `{at.function}` the function at the place.
    """

    code: ClassVar[str]
    kind: ClassVar[str]
    parts: ClassVar[tuple[str, ...]] = ("breaks",)  # the parts of a check that show it
    reference: ClassVar[str]  # PyTorch's page about it
    placed: ClassVar[bool] = False  # a run reports it on a line, not in a function
    run_severity: ClassVar[Severity] = "high"
    suspects: ClassVar[str | None] = None  # of a hazard: the kind that it may be
    message_text: ClassVar[str]
    cause_text: ClassVar[str]
    advice_text: ClassVar[str]  # what a person can do where no program knows an edit
    fixed: ClassVar[tuple[Fixed, ...]] = ()  # forms that a later torch handles
    # What `fix` tries, in this order: rewrites of the source by their names in
    # `fixing.rewrites`, such as "validation.raise_if", and settings of the compiler.
    rewrites: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[tuple[Setting, ...]] = ()
    setting_cures: ClassVar[bool] = False  # each alone, wherever the rule fires
    # Rewrites for what nothing else cures: they take work out of the graph.
    last_rewrites: ClassVar[tuple[str, ...]] = ()
    # Settings that make a finding cheaper, where nothing cures it in a function that
    # another compiled one calls.
    easing_settings: ClassVar[tuple[Setting, ...]] = ()

    group_type: ClassVar[type[EventGroup[Any]]] = EventGroup
    unseen: ClassVar[Event] = Event()  # stands for the event of source that has not run
    nodes: ClassVar[tuple[type[ast.AST], ...]] = ()  # the nodes that `look` gets
    source_text: ClassVar[str] = ""  # the message about source that has not run
    source_severity: ClassVar[Severity] = "medium"
    certain: ClassVar[bool] = False  # the source alone shows it; else a run decides
    shown_by: ClassVar[tuple[str, ...]] = ()  # codes that confirm it; empty: `code`
    also_shown_by: ClassVar[tuple[str, ...]] = ()  # codes that confirm a whole family
    calls: ClassVar[int] = 1  # the calls that a run needs to confirm it

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        """What is suspicious about a node of a function that is compiled."""
        return iter(())

    def read(self, source: Source) -> Iterator[Match]:
        """What is suspicious in a file, compiled or not."""
        return iter(())

    def source_message(self, at: G) -> str:
        return self.source_text.format(at=at, **at.named)

    def source_cause(self, at: G) -> str:
        return self.cause_text.format(at=at, **at.named)

    def source_advice(self, at: G) -> str:
        return self.advice_text.format(at=at, **at.named)

    def suspected(self, match: Match, source: Source, function: str | None) -> Finding:
        """The finding about a match, that no run has confirmed."""
        node = match.node
        assert isinstance(node, ast.expr | ast.stmt | ast.excepthandler)
        file, line = str(source.path), source.lines[node.lineno - 1]
        frame = Frame(file, node.lineno, function or "", line.strip())
        at: Any = self.group_type(
            (match.event or self.unseen,),
            Place(frame, "user", None),
            Facts(Observation((), {})),
            code=source.brief(node),
            around=function or "",
            named=match.words,
        )
        one_line = (node.end_lineno or node.lineno) == node.lineno
        end = node.end_col_offset if one_line else None
        context, context_from = blame.around(file, node.lineno)
        remedy = match.remedy or self.source_remedy(at, match.advice)
        return Finding(
            code=self.code,
            kind=self.kind if self.certain else "hazard",
            suspects=None if self.certain else self.kind,
            severity=match.severity or self.source_severity,
            message=match.message or fitted(self.source_message, at, MESSAGE),
            cause=match.cause or self.source_cause(at),
            fix=remedy.text,
            file=file,
            line=node.lineno,
            function=function,
            owner="user",
            origin="static",
            column=_characters(line, node.col_offset),
            end_column=_characters(line, len(line.encode()) if end is None else end),
            source=line,
            context=context,
            context_from=context_from,
            remedy=remedy,
            key=match.key or keys.of_node(node, source.tree),
        )

    @classmethod
    def family(cls) -> type[AnyRule]:
        """The class that groups the events for all rules below it."""
        return next(base for base in cls.__mro__ if "groups" in vars(base))

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[G]:
        """The events of a run that the family explains, one group per finding."""
        return iter(())

    def matches(self, group: G) -> bool:
        return True

    def stack(self, group: G) -> tuple[Frame, ...]:
        """The frames whose code an edit may change, the most promising last."""
        frames: tuple[Frame, ...] = group.first.frames
        return frames

    def words(self, group: G) -> dict[str, object]:
        """What the texts name in braces, besides `at`: the group."""
        return {}

    def say(self, text: str, group: G) -> str:
        return text.format(at=group, **self.words(group))

    def message(self, group: G) -> str:
        return self.say(self.message_text, group)

    def cause(self, group: G) -> str:
        return self.say(self.cause_text, group)

    def advice(self, group: G) -> str:
        return self.say(self.advice_text, group)

    def cost_us(self, group: G) -> float | None:
        """The cost per call, if it was measured."""
        return None

    def finding_kind(self, group: G) -> str:
        return self.kind

    def severity(self, group: G) -> Severity:
        return self.run_severity

    def status(self, group: G) -> Status:
        return "open"

    def evidence(self, group: G) -> Iterable[str]:
        return ()

    def page(self, group: G) -> str | None:
        """Torch's page about what happened, if a message of torch names one."""
        return None

    def symptom(self, group: G) -> Symptom | None:
        """What a repro of the finding has to show again, besides its kind."""
        return None

    def marks(self, group: G) -> tuple[Mark, ...]:
        """The sizes of the target's arguments that `fix` tries to mark together."""
        return ()

    def edit(self, group: G) -> Remedy | None:
        """The edit of the user's files that removes the finding, if it is certain."""
        return None

    def setting(self, group: G) -> Setting | None:
        """The setting that removes the finding here, and that the program lacks."""
        return self.settings[0] if self.setting_cures else None

    def remedy(self, group: G) -> Remedy:
        """The one way to remove a finding; an edit that can be drafted replaces it."""
        if edit := self.edit(group):
            return edit
        if marks := self.marks(group):
            return Remedy("mark", marks=marks)
        if setting := self.setting(group):
            return Remedy("setting", settings=(setting,))
        if version := self.later(group):
            return Remedy("upgrade", version=version)
        return Remedy("none", why=fitted(self.advice, group, PROSE))

    def source_remedy(self, at: G, advice: str) -> Remedy:
        """The remedy of source that has not run; `advice` is that of the match."""
        if self.setting_cures:
            return Remedy("setting", settings=self.settings[:1])
        return Remedy("none", why=advice or fitted(self.source_advice, at, PROSE))

    def finding(self, group: G) -> Finding:
        frame, remedy = group.frame, self.remedy(group)
        column, end = _columns(frame)
        place = (frame.file, frame.line) if frame else ("", 0)
        context, context_from = blame.around(*place)
        return Finding(
            code=self.code,
            kind=self.finding_kind(group),
            severity=self.severity(group),
            message=fitted(self.message, group, MESSAGE),
            cause=self.cause(group),
            fix=remedy.text,
            file=shown(frame.file) if frame else None,
            line=frame.line if frame else None,
            function=group.function if frame else None,
            owner=group.place.owner,
            count=group.count,
            steps=group.steps,
            cost_us=self.cost_us(group),
            status="intentional" if self._is_ignored(*place) else self.status(group),
            evidence=(*self.evidence(group), *_call_site(group)),
            column=column,
            end_column=end,
            source=(
                (source_line(frame.file, frame.line) or frame.code) if frame else None
            ),
            context=context,
            context_from=context_from,
            suspects=self.suspects,
            marks=self.marks(group),
            remedy=remedy,
            key=self.key(group),
            page=self.page(group),
            symptom=self.symptom(group),
        )

    def _is_ignored(self, file: str, line: int) -> bool:
        """Whether a comment at the place ignores the rule."""
        text = "".join(blame.lines_of(file))
        return ignores(text, blame.statement(file, line), self.code)

    def key(self, group: G) -> str:
        """What the finding is about in its function, without names and values.

        By default the code at the place, that of the library behind it, and the word
        of the event.
        """
        frames = [f for f in (group.frame, group.place.library) if f is not None]
        parts = [keys.of_frame(frame) for frame in frames]
        parts += [frame.function for frame in frames[1:]]
        word = self.word(group)
        parts += [word] if word and re.fullmatch(r"[\w.]+", word) else []
        return " > ".join(parts)

    def word(self, group: G) -> str | None:
        """A word of the event that comes from a fixed list, or names a layer."""
        return None

    def said(self, group: G) -> str:
        """The code, and what torch says about it."""
        return group.expression

    def later(self, group: G) -> str | None:
        """The version of torch that handles this form, if the one here is older."""
        installed = version_of(group.facts.observation.environment.get("torch"))
        for each in self.fixed:
            older = installed and installed < version_of(each.version)
            shown = each.sign is not None and re.search(each.sign, self.said(group))
            if older and shown:
                return each.version
        return None

    @classmethod
    def summary(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "").split("\n")[0]

    @classmethod
    def text(cls) -> RuleText:
        """What a run saves of the rule."""
        return RuleText(
            name=cls.__name__,
            kind=cls.kind,
            summary=cls.summary(),
            text=cls.documentation(),
            reference=cls.reference,
            parts=cls.parts,
            has_edits=bool(cls.rewrites or cls.settings) or cls.edit is not Rule.edit,
        )

    @classmethod
    def _versions(cls) -> str:
        """The section about forms that a later torch handles, if there are any."""
        if not cls.fixed:
            return ""
        rows = [f"- {each.what}: torch {each.version} {each.how}" for each in cls.fixed]
        return "\n\n## Versions\n" + "\n".join(rows)

    @classmethod
    def documentation(cls) -> str:
        return (
            f"# {cls.code}: {cls.summary()}\n"
            + inspect.cleandoc(cls.__doc__ or "").partition("\n")[2]
            + cls._versions()
            + f"\n\n## Reference\n{cls.reference}"
        )


AnyRule = Rule[Any]


def rules_in(module: ModuleType) -> tuple[type[AnyRule], ...]:
    """The rules of a module, in the order of the file."""
    return tuple(
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Rule)
        and value.__module__ == module.__name__
        and "code" in vars(value)
    )


def version_of(torch: str | None) -> tuple[int, ...]:
    """The first two numbers of a version; empty if it is unknown."""
    match = re.match(r"(\d+)\.(\d+)", torch or "")
    return (int(match[1]), int(match[2])) if match else ()


def _call_site(group: AnyGroup) -> Iterator[str]:
    """The user's line that calls the library code of a finding."""
    caller = user_frame(group.first.callers)
    if group.place.owner != "user" and caller is not None:
        where = f"{cells.place(shown(caller.file), caller.line)} {caller.function}"
        yield f"called at {where}: {caller.code}"


def _characters(line: str, offset: int) -> int:
    """A column, which counts characters from one, for an offset in bytes."""
    return len(line.encode()[:offset].decode(errors="ignore")) + 1


def _columns(frame: Frame | None) -> tuple[int | None, int | None]:
    """Columns in the file (1-based, end exclusive); a frame's columns ignore indent."""
    if frame is None or frame.columns is None:
        return None, None
    text = source_line(frame.file, frame.line)
    if text.strip() != frame.code:
        return None, None
    indent = len(text) - len(text.lstrip())
    return indent + frame.columns[0] + 1, indent + frame.columns[1] + 1


def grouped(events: Iterable[E], key: Callable[[E], object]) -> Iterable[list[E]]:
    """The events with the same key together, in the order of the first ones."""
    groups: dict[object, list[E]] = {}
    for event in events:
        groups.setdefault(key(event), []).append(event)
    return groups.values()


def event_place(event: Event, *stacks: tuple[Frame, ...]) -> Place:
    """The line of an event, else its function, else a line of the other stacks."""
    return first_place(event.frames, function_of(event), *stacks)


def function_of(event: Event) -> tuple[Frame, ...]:
    """The function that was compiled, as a stack."""
    return (definition(event.function),) if event.function else ()


def first_place(*stacks: tuple[Frame, ...]) -> Place:
    """The first stack's line that is the user's or a library's."""
    places = [place_of(frames) for frames in stacks]
    return next((place for place in places if place.frame is not None), places[-1])


def stack(group: AnyGroup) -> Iterator[str]:
    """The innermost frames that torch recorded, outermost first."""
    for frame in group.first.frames[-4:]:
        yield f"in {cells.place(frame.file, frame.line)} {frame.function}: {frame.code}"


def fitted(say: Callable[[G], str], group: G, limit: int) -> str:
    """The text about a group, with less of its code where it would be too long."""
    for width in (70, 50, 35, 20):
        text = say(replace(group, width=width))
        if len(text) <= limit:
            break
    return shorten(text, limit)


def expression_of(frame: Frame, limit: int = 70) -> str:
    """The code that a frame underlines; adds brackets that close on a later line.

    The value alone, of `x.requires_grad = True`, does not say what is done with it.
    """
    is_value = re.fullmatch(r"True|False|None|\d[\w.]*", frame.expression or "")
    code = frame.code if is_value else frame.expression or frame.code
    closing = {"(": ")", "[": "]", "{": "}"}.get(code[-1:], "")
    return shorten(f"{code}...{closing}" if closing else code, limit)


def shorten(text: str, limit: int = 70) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def sentence(text: str) -> str:
    """The text without its capital and full stop, for use inside another sentence."""
    text = re.sub(r"\.$", "", text.strip())
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


class SourceRule(Rule[AnyGroup]):
    """Base class of the rules that only the source shows; no event matches."""

    kind: ClassVar[str] = "config"
    parts = ("static",)
    reference = torch_pages.USE
    certain = True


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
