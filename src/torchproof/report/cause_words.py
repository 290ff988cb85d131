"""Causes and what they explain, in the words of every report."""

from __future__ import annotations

from collections.abc import Sequence

from torchproof.records import CauseTree, Finding, Run
from torchproof.report import numbers, run_words

_NOUNS = {
    "graph_break": "graph break",
    "skipped_frame": "skipped frame",
    "recompile_limit": "recompile limit",
    "specialization": "fixed size",
}


def totals(tree: CauseTree) -> str:
    """`3 causes, 17 effects`; empty if no finding explains another."""
    if not tree.total:
        return ""
    causes = [cause for cause in tree.causes if not cause.is_suspicion]
    cause = numbers.amount(len(causes), "cause")
    return f"{cause}, {numbers.amount(tree.total, 'effect')}"


def explained(effects: Sequence[Finding]) -> str:
    """`7 recompiles in 4 functions and 1 graph break`."""
    recompiles = [f for f in effects if f.kind == "recompile"]
    parts = []
    if recompiles:
        times = sum(f.count or 1 for f in recompiles)
        functions = len({(f.file, f.function) for f in recompiles})
        where = numbers.amount(functions, "function")
        parts.append(f"{numbers.amount(times, 'recompile')} in {where}")
    for kind in dict.fromkeys(f.kind for f in effects if f.kind != "recompile"):
        noun = _NOUNS.get(kind, kind.replace("_", " "))
        parts.append(numbers.amount(sum(f.kind == kind for f in effects), noun))
    *most, last = parts or ["nothing else"]
    return f"{', '.join(most)} and {last}" if most else last


def certainty(effects: Sequence[Finding]) -> str:
    """Whether the effects disappear with their cause; old runs have verified ones."""
    sure = sum(f.certainty == "verified" for f in effects)
    if not sure:
        return "likely"
    return "verified" if sure == len(effects) else f"{sure} verified, the rest likely"


def also_explains(effects: Sequence[Finding]) -> str:
    return f"also explains {explained(effects)} ({certainty(effects)})"


def fix_first(run: Run, tree: CauseTree) -> str:
    """The cause to fix first, and what that gains; empty if none explains another."""
    if not tree.total or not tree.causes:
        return ""
    first = tree.causes[0]
    effects = tree.effects(first)
    text = f"Fix first: {first.code} at {run_words.place(first)}"
    gains = []
    costs = [f.cost_us for f in (first, *effects) if f.cost_us is not None]
    if costs:
        gains.append(f"costs {numbers.plain(sum(costs))} us/call")
    recompiles, total = _recompiles((first, *effects)), run.counts.get("recompiles")
    if recompiles and total and recompiles <= total:
        gains.append(f"is behind {recompiles} of {total} recompiles")
    if effects:
        gains.append(also_explains(effects))
    return f"{text}. It {'; '.join(gains)}." if gains else f"{text}."


def _recompiles(findings: Sequence[Finding]) -> int:
    return sum(f.count or 1 for f in findings if f.kind == "recompile")


def briefly(effect: Finding, cause: Finding, tree: CauseTree) -> str:
    """The message of an effect below its cause, and the other causes it needs."""
    text = effect.message.replace(", compiled on its own after a graph break,", "")
    others = [f for f in tree.causes_of(effect) if f.identity != cause.identity]
    if not others or len(effect.cause_of) == 1:
        return text
    also = " and ".join(f"{f.code} at {run_words.place(f)}" for f in others)
    return f"{text} (it also follows from {also})"


def follows_from(finding: Finding, tree: CauseTree) -> str:
    """`GB102 at model.py:40`: the causes of an effect; empty for a cause."""
    causes = tree.causes_of(finding)
    return " and ".join(f"{f.code} at {run_words.place(f)}" for f in causes)
