"""RC29x: guards without a rule of their own, and the recompile limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.recompiles import (
    Recompile,
    in_callers_words,
    recompile_place,
)
from torchproof.checking.rules.rule import EventGroup, Facts, Rule, grouped, shorten
from torchproof.observe import Guard


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

    def matches(self, group: EventGroup) -> bool:
        return group.data["guard"] is not None

    def changed(self, guard: Guard, group: EventGroup) -> str:
        return (
            "a condition of the compiled code no longer held:"
            f" `{shorten(guard.source)}`"
        )


class RecompileLimit(Rule):
    """A function hits the recompile limit and runs eagerly from then on.

    ## Why
    After 8 graphs of one function torch stops compiling it. There is no error: the
    function is only slower.

    ## Bad
        # a value that is a constant of the graph and changes in every call

    ## Good
        # a tensor instead; or a higher recompile_limit, if there are few variants

    ## Fix safety
    See the rule of the cause that the finding names.
    """

    code = "RC290"
    kind = "recompile_limit"
    reference = torch_pages.RECOMPILES

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        """One group per function that hit the limit."""
        limits = facts.events("recompile_limit")
        for events in grouped(limits, lambda event: event.function):
            group = [in_callers_words(event, facts) for event in events]
            yield EventGroup(
                tuple(group), recompile_place(group[0]), facts, count=len(group)
            )

    def message(self, group: EventGroup) -> str:
        limit = group.data["limit"]
        facts = group.facts.observation
        eager = ""
        if (
            facts.calls
            and facts.compiled_calls is not None
            and facts.compiled_calls < facts.calls
        ):
            eager = (
                f"; {facts.calls - facts.compiled_calls} of {facts.calls} calls ran no"
                " compiled code"
            )
        return (
            f"{group.compiled} hit the recompile limit ({limit or '-'}) and runs"
            f" eagerly from then on{eager}"
        )

    def cause(self, group: EventGroup) -> str:
        rule = group.facts.first(Recompile, group)
        if rule is None:
            return "too many recompilations"
        return (
            f"it recompiled for each change: {rule.changed(group.data['guard'], group)}"
        )

    def fix(self, group: EventGroup) -> str:
        rule = group.facts.first(Recompile, group)
        advice = (
            rule.fix(group) if rule else "find what changes with TORCH_LOGS=recompiles"
        )
        return (
            f"{advice}; if you need the variants and there are only a few, raise"
            f" torch._dynamo.config.{group.data['setting']}"
        )

    def evidence(self, group: EventGroup) -> Iterable[str]:
        if group.data["guard"] is not None:
            yield f"last guard to fail: {shorten(group.data['guard'].text, 200)}"
        yield (
            "GB0039"
            " https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0039.html"
        )
