"""Finds which failed guard made torch compile a function again.

Torch reports one failed guard for each graph of the function. If two values vary, the
first guard reported may not be the cause: another graph was compiled for that very
value and failed on another guard. A graph's failures show what it was compiled for, so
the whole run is read before a recompile is attributed to a guard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torchproof.records import FailedGuard, Guard, GuardEvent
from torchproof.records.guards import Subject

# Torch makes a number of these kinds symbolic once it has changed.
_BECOME_SYMBOLIC = frozenset({"size", "value"})
_NOT_A_VALUE = frozenset({"something", "something else", "another type", "0 or 1"})


def causes_of(events: Iterable[GuardEvent]) -> list[FailedGuard]:
    """The failed guard that caused each event; each has at least one."""
    events = list(events)
    functions: dict[str, _Function] = {}
    for event in events:
        functions.setdefault(_function_of(event), _Function()).note(event)
    return [functions[_function_of(event)].choose(event) for event in events]


def _function_of(event: GuardEvent) -> str:
    return (event.compile_id or "").split("/")[0]


def _graph_of(number: str | None) -> str:
    """The graph of a compile id: `0/2` and its second attempt `0/2_1` are graph 2."""
    return (number or "").split("/")[-1].split("_")[0]


@dataclass
class _Function:
    """The values that the graphs of one function were compiled for, as far as known.

    `expected` is what a graph's guard expects, `compiled_for` the actual value at its
    compilation, `after_failures_of` the subjects whose failed guards led to the graph,
    and `values` all values of a subject. Graphs are numbered as strings.
    """

    expected: dict[tuple[str, Subject], str] = field(default_factory=dict)
    compiled_for: dict[tuple[str, Subject], str] = field(default_factory=dict)
    after_failures_of: set[tuple[str, Subject]] = field(default_factory=set)
    values: dict[Subject, set[str]] = field(default_factory=dict)

    def note(self, event: GuardEvent) -> None:
        """Notes what each failed guard expects, and what the new graph is for."""
        new_graph = _graph_of(event.compile_id)
        for failed in event.failed_guards:
            guard, subject = failed.guard, failed.subject
            expected = _expected(guard)
            self.expected[_graph_of(guard.graph), subject] = expected
            self.after_failures_of.add((new_graph, subject))
            values = self.values.setdefault(subject, set())
            values.add(expected)
            if guard.actual and guard.actual not in _NOT_A_VALUE:
                self.compiled_for[new_graph, subject] = guard.actual
                values.add(guard.actual)

    def choose(self, event: GuardEvent) -> FailedGuard:
        """The first failed guard whose value is new to all graphs that failed.

        If there is none, only the combination is new. Then the cause is the subject
        with the most values, because it will vary further.
        """
        first: dict[Subject, FailedGuard] = {}
        for failed in event.failed_guards:
            first.setdefault(failed.subject, failed)
        for subject, failed in first.items():
            if not self._was_accepted(subject, event):
                return failed
        return first[max(first, key=lambda subject: len(self.values[subject]))]

    def _was_accepted(self, subject: Subject, event: GuardEvent) -> bool:
        """Whether a graph that accepts this value failed because of another guard."""
        value = self._value_at(event, subject)
        others = [f for f in event.failed_guards if f.subject != subject]
        return any(
            self._accepts(_graph_of(f.guard.graph), subject, value) for f in others
        )

    def _value_at(self, event: GuardEvent, subject: Subject) -> str | None:
        """The call's value: what the new graph is for, else the only one remaining."""
        if made_for := self._made_for(_graph_of(event.compile_id), subject):
            return made_for
        same_subject = [f.guard for f in event.failed_guards if f.subject == subject]
        remaining = self.values[subject] - {_expected(guard) for guard in same_subject}
        return remaining.pop() if len(remaining) == 1 else None

    def _accepts(self, graph: str, subject: Subject, value: str | None) -> bool:
        made_for = self._made_for(graph, subject)
        if value is not None and made_for == value:
            return True
        number = all(_is_number(v) for v in self.values[subject])
        symbol = subject[0] in _BECOME_SYMBOLIC and number
        never_failed = (graph, subject) not in self.expected
        return symbol and never_failed and (graph, subject) in self.after_failures_of

    def _made_for(self, graph: str, subject: Subject) -> str | None:
        return self.compiled_for.get((graph, subject)) or self.expected.get(
            (graph, subject)
        )


def _expected(guard: Guard) -> str:
    return guard.expected or guard.text.split("  #")[0].strip()


def _is_number(text: str) -> bool:
    return text.lstrip("-")[:1].isdigit()
