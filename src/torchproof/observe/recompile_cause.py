"""Which of the guards that failed made torch compile a function once more.

Torch tells one failed guard for each graph the function has. Where two things vary, the
first one told may be beside the point: a graph made for that very value refused too, on
another guard. What a graph was made for shows whenever it refuses, so the whole run is
looked at before any recompile is put down to a guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from torchproof.observe.guard_failures import Guard
from torchproof.records import Event, Frame

# Torch gives a symbol to a number of these kinds once it has changed.
_GET_A_SYMBOL = frozenset({"size", "value"})
_SAYS_LITTLE = frozenset({"something", "something else", "another type", "0 or 1"})

Thing = tuple[str, str, int | None]


@dataclass(frozen=True)
class FailedGuard:
    """One graph's failed guard, and the user's stack it came from."""

    guard: Guard
    frames: tuple[Frame, ...] = ()

    @property
    def thing(self) -> Thing:
        """What was looked at, whatever its value."""
        return (self.guard.cause, self.guard.source, self.guard.dim)


def find_recompile_causes(events: Iterable[Event]) -> list[Event]:
    """The events, each with the guard of its `failed_guards` that decided and its stack."""
    every = list(events)
    functions: dict[str, _Function] = {}
    for event in every:
        if "failed_guards" in event.data:
            functions.setdefault(_function_of(event), _Function()).note(event)
    return [_settled(event, functions) for event in every]


def _settled(event: Event, functions: dict[str, _Function]) -> Event:
    if not event.data.get("failed_guards"):
        return event
    chosen = functions[_function_of(event)].choose(event)
    return replace(
        event, frames=chosen.frames, data={**event.data, "guard": chosen.guard}
    )


def _function_of(event: Event) -> str:
    return (event.compile_id or "").split("/")[0]


def _graph_of(number: str | None) -> str:
    """`0/2` and its second attempt `0/2_1` are graph 2 of their function."""
    return (number or "").split("/")[-1].split("_")[0]


@dataclass
class _Function:
    """What the graphs of one function were made for, as far as the run shows it."""

    asked: dict[tuple[str, Thing], str] = field(default_factory=dict)
    met: dict[tuple[str, Thing], str] = field(default_factory=dict)
    made_over: set[tuple[str, Thing]] = field(default_factory=set)
    values: dict[Thing, set[str]] = field(default_factory=dict)

    def note(self, event: Event) -> None:
        """What each graph asks for, and what the graph made here was made for."""
        new_graph = _graph_of(event.compile_id)
        for failed in event.data["failed_guards"]:
            guard, subject = failed.guard, failed.thing
            asks = _asks(guard)
            self.asked[_graph_of(guard.graph), subject] = asks
            self.made_over.add((new_graph, subject))
            values = self.values.setdefault(subject, set())
            values.add(asks)
            if guard.actual and guard.actual not in _SAYS_LITTLE:
                self.met[new_graph, subject] = guard.actual
                values.add(guard.actual)

    def choose(self, event: Event) -> FailedGuard:
        """The first told whose value no refusing graph was made for.

        Where there is none it is the combination that is new: then what had the most
        values, for it will go on.
        """
        failed_guards: Sequence[FailedGuard] = event.data["failed_guards"]
        first: dict[Thing, FailedGuard] = {}
        for failed in failed_guards:
            first.setdefault(failed.thing, failed)
        for subject, failed in first.items():
            if not self._was_there(subject, event):
                return failed
        return first[max(first, key=lambda subject: len(self.values[subject]))]

    def _was_there(self, subject: Thing, event: Event) -> bool:
        """Whether a graph that takes this value refused because of something else."""
        value = self._value_at(event, subject)
        others = [r for r in event.data["failed_guards"] if r.thing != subject]
        return any(
            self._takes(_graph_of(r.guard.graph), subject, value) for r in others
        )

    def _value_at(self, event: Event, subject: Thing) -> str | None:
        """The call's own: what the graph made here asks for, else what is left."""
        if made_for := self._made_for(_graph_of(event.compile_id), subject):
            return made_for
        same = [r.guard for r in event.data["failed_guards"] if r.thing == subject]
        remaining = self.values[subject] - {_asks(guard) for guard in same}
        return remaining.pop() if len(remaining) == 1 else None

    def _takes(self, graph: str, subject: Thing, value: str | None) -> bool:
        made_for = self._made_for(graph, subject)
        if value is not None and made_for == value:
            return True
        number = all(_is_number(v) for v in self.values[subject])
        symbol = subject[0] in _GET_A_SYMBOL and number
        never_asked = (graph, subject) not in self.asked
        return symbol and never_asked and (graph, subject) in self.made_over

    def _made_for(self, graph: str, subject: Thing) -> str | None:
        return self.met.get((graph, subject)) or self.asked.get((graph, subject))


def _asks(guard: Guard) -> str:
    return guard.expected or guard.text.split("  #")[0].strip()


def _is_number(text: str) -> bool:
    return text.lstrip("-")[:1].isdigit()
