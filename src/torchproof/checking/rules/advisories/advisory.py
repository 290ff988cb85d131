"""The base class of advisories: bugs of torch that the observed graph can hit.

An advisory is a rule in a file of its own, which recognises in a captured graph what
triggers a known problem. The problem's file has the versions and the program.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torchproof import known_problems
from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import (
    EventGroup,
    Facts,
    Rule,
    first_place,
    function_of,
    version_of,
)
from torchproof.known_problems import KnownProblem
from torchproof.records import Frame, GraphEvent, Operation, Severity

_ISSUES = "https://github.com/pytorch/pytorch/issues/"
_INDUCTOR = "torch._inductor.config"
_GRAPH_MODES = ("reduce-overhead", "max-autotune")
_NO_GRAPHS = "no-cudagraphs"


@dataclass(frozen=True)
class CapturedGraph:
    """A graph of the run, and how it is compiled."""

    event: GraphEvent
    facts: Facts

    @property
    def operations(self) -> tuple[Operation, ...]:
        return self.event.operations or ()

    @property
    def on_gpu(self) -> bool:
        return any(each.device == "cuda" for each in self.operations)

    @property
    def uses_inductor(self) -> bool:
        backend = self.facts.compile_arguments.get("backend", "inductor")
        return backend == "inductor"

    @property
    def uses_cudagraphs(self) -> bool:
        mode = self.facts.compile_arguments.get("mode", "")
        if mode.startswith(_GRAPH_MODES) and not mode.endswith(_NO_GRAPHS):
            return True
        return self.setting("triton.cudagraphs") == "True"

    def setting(self, name: str, variable: str = "") -> str:
        """A setting of Inductor as text, if the program or a variable changed it."""
        options = self.facts.compile_arguments.get("options", "")
        if match := re.search(rf"'{re.escape(name)}': (\w+)", options):
            return match[1]
        changed = self.event.changed.get(_INDUCTOR, {})
        if name in changed:
            return str(changed[name])
        variables = self.facts.observation.environment.get("variables") or {}
        return {"0": "False", "1": "True"}.get(str(variables.get(variable)), "")

    def reaches(self, position: int) -> set[int]:
        """The positions of everything that an operation is computed from."""
        reached, new = {position}, [position]
        while new:
            more = set(self.operations[new.pop()].inputs) - reached
            reached |= more
            new += more
        return reached


@dataclass(frozen=True)
class Trigger:
    """The operation of a graph that can hit the bug, and words for the texts."""

    operation: Operation
    words: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AdvisoryGroup(EventGroup[GraphEvent]):
    """A graph that can hit the bug of an advisory."""

    advisory: str
    trigger: Trigger


class Advisory(Rule[AdvisoryGroup]):
    """A bug of torch that gives wrong results silently, and what triggers it."""

    kind = "hazard"
    suspects = "numerics"
    reference = torch_pages.REPORTING
    run_severity: ClassVar[Severity] = "medium"
    problem: ClassVar[str]  # its file in `known_problems`

    def triggers(self, graph: CapturedGraph) -> Iterator[Trigger]:
        """The operations of a graph that can hit the bug."""
        raise NotImplementedError

    @classmethod
    def known(cls) -> KnownProblem:
        return known_problems.named(cls.problem)

    @classmethod
    def affects(cls, torch: str | None) -> bool:
        """Whether a version of torch has the bug; False if the version is unknown."""
        version, known = version_of(torch), cls.known()
        if not version or (known.since and version < version_of(known.since)):
            return False
        return not known.fixed or version < version_of(known.fixed)

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[AdvisoryGroup]:
        """One group per advisory and place."""
        torch = facts.observation.environment.get("torch")
        graphs = [e for e in facts.of(GraphEvent) if e.operations is not None]
        for rule in facts.rules:
            if isinstance(rule, Advisory) and rule.affects(torch):
                yield from rule._groups(facts, graphs)

    def _groups(
        self, facts: Facts, graphs: Iterable[GraphEvent]
    ) -> Iterator[AdvisoryGroup]:
        seen: set[object] = set()
        for event in graphs:
            for trigger in self.triggers(CapturedGraph(event, facts)):
                frames = trigger.operation.frames or event.frames
                place = first_place(frames, function_of(event))
                if place not in seen:
                    seen.add(place)
                    yield AdvisoryGroup(
                        events=(event,),
                        place=place,
                        facts=facts,
                        advisory=self.code,
                        trigger=trigger,
                    )

    def stack(self, group: AdvisoryGroup) -> tuple[Frame, ...]:
        return group.trigger.operation.frames or super().stack(group)

    def matches(self, group: AdvisoryGroup) -> bool:
        return group.advisory == self.code

    def words(self, group: AdvisoryGroup) -> dict[str, object]:
        version = str(group.facts.observation.environment["torch"]).partition("+")[0]
        return {"torch": f"torch {version}", **group.trigger.words}

    def later(self, group: AdvisoryGroup) -> str | None:
        return self.known().fixed

    def evidence(self, group: AdvisoryGroup) -> Iterable[str]:
        upstream = self.known().upstream
        yield f"{_ISSUES}{upstream[0]}" if upstream else "not reported upstream"
        yield f"`torchproof rule {self.code}` prints a program that shows it"

    @classmethod
    def versions(cls) -> str:
        """The versions that have the bug, and those under which the program was run."""
        known = cls.known()
        if known.fixed:
            tried = "All versions tried" if known.wrong else "All versions"
            since = f"From torch {known.since} on" if known.since else tried
            has = f"{since}, up to the one before torch {known.fixed}."
        else:
            has = "All versions tried; none of them is without it."
        return f"{has} {cls._tried(known)}"

    @classmethod
    def _tried(cls, known: KnownProblem) -> str:
        if not known.wrong:
            tried = "needs a GPU and was not run"
            if known.unshown:
                tried = f"did not show it under torch {', '.join(known.unshown)}"
            return (
                f"The program below {tried}: the versions come from reading the source"
                " of torch 2.11 to 2.15."
            )
        right = f", right under {', '.join(known.right)}" if known.right else ""
        return (
            f"The program below, on a {'GPU' if known.needs == 'cuda' else 'CPU'}, was"
            f" wrong under torch {', '.join(known.wrong)}{right}."
        )

    @classmethod
    def documentation(cls) -> str:
        known = cls.known()
        head, mark, reference = super().documentation().partition("\n\n## Reference\n")
        links = "\n".join(f"- {_ISSUES}{number}" for number in known.upstream)
        program = textwrap.indent(known.source.strip("\n"), "    ")
        return (
            f"{head}\n\n## Versions\n{textwrap.fill(cls.versions(), 88)}"
            f"\n\n## Upstream\n{links or 'Not reported.'}"
            f"\n\n## Program\n{program}{mark}{reference}"
        )
