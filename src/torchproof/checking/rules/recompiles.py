"""Recompiles: groups the events of one cause; the recompile limit, other guards."""

from __future__ import annotations

import ast
import enum
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

from torchproof.checking.rules import keys, torch_pages, user_patterns
from torchproof.checking.rules.number_edits import with_setting
from torchproof.checking.rules.recompile_groups import (
    RecompileGroup,
    call_frame,
    key_of,
    placed,
    recompile_place,
    subject,
)
from torchproof.checking.rules.rule import (
    PROSE,
    Facts,
    Rule,
    fitted,
    grouped,
    plural,
    shorten,
)
from torchproof.records import (
    BEFORE_THE_BREAK,
    Guard,
    GuardCause,
    LimitEvent,
    RecompileEvent,
    Remedy,
    Severity,
    Symptom,
)

_LEAST_VALUE = 14  # characters of a value: those of "something else"
_LIMIT = "torch._dynamo.config.recompile_limit"
_GRAPHS = 8  # of one function, unless the program changes the limit
_PAGE = "https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0039.html"
_COMPARES = re.compile(r" (?:[<>]=?|[!=]=) ")
_PATH = re.compile(r"[\w.\[\]'\"]+")


def converted(guard: Guard, group: RecompileGroup, change: str) -> str:
    """The edit that converts an argument at the call: `x = x.float()`."""
    if group.is_fixed:
        return f"{guard.source} = {guard.source}{change}"
    node = ast.parse(guard.source, mode="eval").body
    is_term = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return f"pass {guard.source if is_term else f'({guard.source})'}{change}"


def values_seen(group: RecompileGroup) -> str:
    """The values that the guards on one source saw, in order, without repeats."""
    first, limit = group.guard, 6 if group.width >= 50 else 3
    about = (first.source, first.dim)
    same = [guard for guard in group.guards if (guard.source, guard.dim) == about]
    width = max(group.width // 2, _LEAST_VALUE)
    values = (shorten(v, width) for each in same for v in each.values)
    unique = list(dict.fromkeys(values))
    if len(unique) == 1:
        return f"was {unique[0]}"
    return ", ".join([*unique[:limit], *(["..."] if len(unique) > limit else [])])


def _brief(source: str, width: int) -> str:
    """An expression with less of it: of a path, the end says more."""
    if source == BEFORE_THE_BREAK:
        return source
    if len(source) <= width or not _PATH.fullmatch(source):
        return shorten(source, width)
    return f"...{source[3 - width :]}"


class Values(enum.Enum):
    """How many values there are of what a guard checks."""

    FEW = enum.auto()  # None or not, 0 or 1, a mode; or torch makes it an input
    ENDLESS = enum.auto()  # a number that stays a constant, what grows, text
    UNKNOWN = enum.auto()  # the later calls of the run tell


class Recompile(Rule[RecompileGroup]):
    """Base class of the rules for recompiles; each rule knows one cause."""

    kind = "recompile"
    reference = torch_pages.RECOMPILES
    causes: ClassVar[tuple[GuardCause, ...]] = ()
    source_text = "`{at.expression}` would recompile {at.function} in each call"
    changed_text: ClassVar[str]  # what changed between calls, with its values
    cause_text = "the compiled code holds for the `{guard.source}` that it was made for"
    values: ClassVar[Values] = Values.UNKNOWN  # those of what changed

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[RecompileGroup]:
        """One group per cause and function, for all of its recompiled frames.

        Sizes that differ between two calls at one line are one cause, whichever
        argument the guard names: the fix marks all of them at that line. A break in a
        library is also one cause, for every function that Dynamo compiles separately
        because of it.
        """
        key = functools.partial(key_of, facts=facts)
        for events in grouped(facts.of(RecompileEvent), key):
            calls = {event.call for event in events} - {None}
            yield RecompileGroup(
                tuple(events),
                recompile_place(events[0], facts),
                facts,
                count=len(events),
                steps=len(calls) or None,
            )

    def matches(self, group: RecompileGroup) -> bool:
        guard = group.first.guard
        return guard is not None and guard.cause in self.causes

    def words(self, group: RecompileGroup) -> dict[str, object]:
        guard, width = group.guard, group.width
        brief = replace(
            guard, source=_brief(guard.source, width), other=_brief(guard.other, width)
        )
        return {"guard": brief, "seen": values_seen(group)}

    def key(self, group: RecompileGroup) -> str:
        """The kind of guard, and what it checks; or what the group has in common."""
        guard, cut = group.guard, group.cut
        if cut is not None and group.place.owner == "library":
            return f"{guard.cause} behind {cut.function} > {keys.of_frame(cut)}"
        if guard.cause == "size" and group.is_marked_at_call:
            call = group.first.entry_call
            frame = call and call_frame(call)
            return f"{guard.cause} at {keys.of_frame(frame) if frame else 'the call'}"
        dim = "" if guard.dim is None else f" {guard.dim}"
        return f"{guard.cause} of {subject(group.first)}{dim}"

    def message(self, group: RecompileGroup) -> str:
        times = plural(group.count or 1, "time")
        if self.severity(group) == "low":
            times = "once" if group.count == 1 else times
            times = f"{times}, then it settles"
        name = shorten(group.compiled, group.width)
        return f"{name} recompiled {times}: {self.changed(group)}"

    def say(self, text: str, group: RecompileGroup) -> str:
        return (
            super().say(text, group).replace(f"`{BEFORE_THE_BREAK}`", BEFORE_THE_BREAK)
        )

    def changed(self, group: RecompileGroup) -> str:
        """What changed between calls, with its values."""
        return self.say(self.changed_text, group)

    def cause(self, group: RecompileGroup) -> str:
        found = user_patterns.found(group)
        pattern = f"{found.name}; " if found else ""
        return fitted(lambda g: f"{pattern}{self.why(g)}", group, PROSE)

    def why(self, group: RecompileGroup) -> str:
        return self.say(self.cause_text, group)

    def remedy(self, group: RecompileGroup) -> Remedy:
        behind = group.cut is not None or group.guard.source == BEFORE_THE_BREAK
        setting, found = self.setting(group), user_patterns.found(group)
        known = found and found.remedy and with_setting(found.remedy, setting)
        if known:
            return known
        if edit := None if behind else self.edit(group):
            return edit
        if setting:
            return Remedy("setting", settings=(setting,))
        if found and found.advice:
            return Remedy("none", why=found.advice)
        advice = _without_break if behind else self.advice
        return Remedy("none", why=fitted(advice, group, PROSE))

    def edit(self, group: RecompileGroup) -> Remedy | None:
        """The lines to write, or the sizes to mark, that remove the finding."""
        return None

    def severity(self, group: RecompileGroup) -> Severity:
        guard = group.guard
        count = group.count or 1
        calls = group.facts.calls or 0
        merged = guard.cause == "size" and group.is_marked_at_call
        if merged or (group.cut and group.place.owner == "library"):
            count = group.steps or count  # several frames of one call, one cause
        if count >= 3 and (group.steps or count) * 2 >= calls - 1:
            return "high"
        values = self.values_of(group)
        if values is Values.ENDLESS or _is_near_limit(group):
            return "medium"
        if values is Values.FEW:
            return "low" if count == 1 or group.is_quiet_after else "medium"
        return "low" if group.is_over else "medium"

    def values_of(self, group: RecompileGroup) -> Values:
        """How many values what changed can have: so many graphs it needs."""
        return self.values

    def evidence(self, group: RecompileGroup) -> Iterable[str]:
        for event in group.events[:3]:
            text = event.guard.text if event.guard else ""
            yield f"{event.compile_id}: {shorten(text, 200)}"
        if len(group.events) > 3:
            yield f"and {len(group.events) - 3} more"

    def symptom(self, group: RecompileGroup) -> Symptom | None:
        guard = group.first.guard
        return Symptom(text=shorten(guard.text, 200)) if guard else None


def per_value(guard: Guard) -> bool:
    """Whether each value gets its own graph: bools, strings, dtypes."""
    number = (guard.expected or "").lstrip("-")
    is_value = guard.cause in {"value", "attribute", "global"}
    return is_value and not number[:1].isdigit()


def _is_near_limit(group: RecompileGroup) -> bool:
    """Whether torch refuses the graph after the next one, or has refused one."""
    limit = group.facts.observation.settings.get(_LIMIT, _GRAPHS)
    graphs = [re.search(r"/(\d+)", e.compile_id or "") for e in group.events]
    near = any(graph and int(graph[1]) + 2 >= int(limit) for graph in graphs)
    refused = any(
        e.function == group.first.function for e in group.facts.of(LimitEvent)
    )
    return near or refused


def _without_break(group: RecompileGroup) -> str:
    """What a recompile behind a graph break needs: the code before it has the value."""
    cut = group.cut
    where = f"at {placed(cut, group)}" if cut else "before this line"
    return f"remove the graph break {where}: what follows it is compiled on its own"


class OtherGuard(Recompile):
    """A guard failed that no other rule covers.

    ## Why
    The finding quotes the guard as torch reports it.

    ## Bad
        # a value that Dynamo reads while tracing, and that changes later

    ## Good
        # the same value as a tensor argument, or kept constant

    ## Fix safety
    Unknown: compare the outputs before and after.
    """

    code = "RC299"
    changed_text = "`{guard.source}` no longer holds"
    cause_text = "the compiled code holds only while `{guard.source}` does"
    advice_text = "keep what `{guard.source}` checks the same between calls"
    outcome_text = (
        "warm up with one call for each outcome of `{guard.source}`: each graph is kept"
    )

    def matches(self, group: RecompileGroup) -> bool:
        return group.first.guard is not None

    def values_of(self, group: RecompileGroup) -> Values:
        """A condition on a number that is an input has two outcomes."""
        return Values.FEW if _COMPARES.search(group.guard.source) else Values.UNKNOWN

    def advice(self, group: RecompileGroup) -> str:
        is_condition = self.values_of(group) is Values.FEW
        return self.say(self.outcome_text if is_condition else self.advice_text, group)


class RecompileLimit(Rule[RecompileGroup]):
    """A function hits the recompile limit and runs eagerly from then on.

    ## Why
    After 8 graphs of one function torch stops compiling it. There is no error: the
    function is only slower. If you need the variants and there are only a few, raise
    torch._dynamo.config.recompile_limit.

    ## Bad
        # a value that is a constant of the graph and changes in every call

    ## Good
        # a tensor instead; or a higher recompile_limit, if there are few variants

    ## Fix safety
    See the rule of the cause that the finding names.
    """

    code = "RC290"
    last_rewrites = ("state.outside",)
    kind = "recompile_limit"
    reference = torch_pages.RECOMPILES
    advice_text = "find what changes between calls with TORCH_LOGS=recompiles"
    few_text = (
        "if there are only a few values, raise torch._dynamo.config.{at.first.setting}"
        " above their number"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[RecompileGroup]:
        """One group per function that hit the limit."""
        limits = facts.of(LimitEvent)
        for events in grouped(limits, lambda event: event.function):
            place = recompile_place(events[0], facts)
            yield RecompileGroup(tuple(events), place, facts, count=len(events))

    def key(self, group: RecompileGroup) -> str:
        """The function that hit the limit: it may be called at the place."""
        return group.compiled

    def message(self, group: RecompileGroup) -> str:
        assert isinstance(group.first, LimitEvent)
        seen = group.facts.observation
        name = shorten(group.compiled, group.width)
        limit = f"{name} hit the recompile limit ({group.first.limit or '-'})"
        compiled = seen.compiled_calls
        if seen.calls and compiled is not None and compiled < seen.calls:
            eager = f"{seen.calls - compiled} of {seen.calls} calls"
            return f"{limit}: {eager} ran no compiled code"
        return f"{limit} and runs eagerly from then on"

    def cause(self, group: RecompileGroup) -> str:
        rule = group.facts.first(Recompile, group)
        if rule is None:
            return "too many recompilations"
        return f"it recompiled for each change: {fitted(rule.changed, group, 128)}"

    def remedy(self, group: RecompileGroup) -> Remedy:
        """That of the guard that failed last."""
        rule = group.facts.first(Recompile, group)
        if rule is None:
            return super().remedy(group)
        found = rule.remedy(group)
        if found.kind != "none" or group.cut or not per_value(group.guard):
            return found
        return Remedy("none", why=self.say(self.few_text, group))

    def evidence(self, group: RecompileGroup) -> Iterable[str]:
        if group.first.guard is not None:
            yield f"last guard to fail: {shorten(group.guard.text, 200)}"

    def page(self, group: RecompileGroup) -> str | None:
        return _PAGE

    def symptom(self, group: RecompileGroup) -> Symptom | None:
        known = group.first.guard is not None
        text = shorten(group.guard.text, 200) if known else ""
        return Symptom(text=text, gb_id="GB0039")
