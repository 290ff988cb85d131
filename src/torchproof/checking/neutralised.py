"""Runs a target again without a cause, to see what disappears with it.

Nothing on disk changes: a child process runs the same calls with a setting, with marks,
or with one statement left out in memory. Only the compiler's actions are observed.
"""

from __future__ import annotations

import ast
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchproof.checking import causes, counts, rules
from torchproof.checking.rules import Matched
from torchproof.checking.rules.breaks import GraphBreak
from torchproof.observe import observe
from torchproof.records import CauseTree, Finding, Gain, Overlay, UserError, blame
from torchproof.targets import Options, Target

_MOST_RUNS = 3
_SECONDS = 60.0  # no further run begins after so long
_COUNTS = ("graphs", "graph_breaks", "skipped_frames", "recompiles")

Progress = Callable[[str], None]
Counts = Mapping[str, int | None]


@dataclass(frozen=True)
class Neutral:
    """An overlay with which a cause should be gone, and the same in words."""

    overlay: Overlay
    how: str


@dataclass(frozen=True)
class Without:
    """What a run did without a cause: its findings, links and counts."""

    found: tuple[Finding, ...]
    explained: causes.Explanations
    counts: Counts
    how: str


class Neutraliser:
    """Finds out which effects disappear with their cause."""

    def __init__(
        self, target: Target, options: Options, found: Sequence[Matched], before: Counts
    ) -> None:
        self._target, self._options = target, replace(options, quiet=True)
        self._groups = {each.finding.identity: each for each in found}
        self._before = {name: before.get(name) for name in _COUNTS}
        self._until = time.monotonic() + _SECONDS
        self._runs = 0
        self.interrupted = False

    def verified(self, findings: list[Finding], progress: Progress) -> list[Finding]:
        """The findings, with what runs without the first causes showed."""
        tree = CauseTree(findings)
        for cause in [cause for cause in tree.causes if tree.effects(cause)]:
            for neutral in self._ways(cause):
                late = time.monotonic() > self._until or self._runs >= _MOST_RUNS
                if self.interrupted or late:
                    return causes.ranked(findings)
                place = f"line {cause.line}" if cause.line else "its place"
                progress(f"running without {cause.code} at {place}")
                without = self._run(neutral)
                if without is not None and _is_gone(cause, findings, without):
                    findings = self._judged(findings, cause, without)
                    break
        return causes.ranked(findings)

    def _ways(self, cause: Finding) -> Iterator[Neutral]:
        """The ways to neutralise a cause that are specific to it, surest first."""
        matched = self._groups.get(cause.identity)
        if matched is None:
            return
        if cause.marks:
            words = "; ".join(mark.code for mark in cause.marks)
            yield Neutral(Overlay(marks=cause.marks), words)
        if not isinstance(matched.rule, GraphBreak):
            return
        yield from _left_out(matched)
        for setting in matched.rule.settings[:1]:
            if setting.name.startswith("dynamo.") and isinstance(setting.value, bool):
                yield Neutral(Overlay(settings=(setting,)), setting.code)

    def _run(self, neutral: Neutral) -> Without | None:
        """A run of the same calls; None if it fails, which proves nothing."""
        self._runs += 1
        with tempfile.TemporaryDirectory(prefix="torchproof-") as folder:
            path = Path(folder) / "overlay.json"
            path.write_text(json.dumps(neutral.overlay.to_json()), "utf-8")
            options = replace(self._options, overlay=str(path))
            try:
                observation = observe(self._target, options, lambda text: None)
            except UserError:
                return None
        self.interrupted = observation.ending == "interrupted"
        if observation.error or observation.ending != "finished":
            return None
        found = rules.matched(observation)
        findings = tuple(each.finding for each in found)
        counted = counts.counts_of(observation, list(findings))
        after = {name: counted.get(name) for name in _COUNTS}
        return Without(findings, causes.explain(found), after, neutral.how)

    def _judged(
        self, findings: list[Finding], cause: Finding, without: Without
    ) -> list[Finding]:
        tree = CauseTree(findings)
        effects = {f.identity for f in tree.effects(cause)}
        left = {f.identity for f in without.found}
        known = {f.identity for f in findings if f.status == "open"}
        judged = []
        for finding in findings:
            if finding.identity == cause.identity:
                gain = Gain(without.how, self._before, without.counts)
                finding = replace(finding, gain=gain)
            elif finding.identity in effects - left:
                finding = replace(finding, certainty="verified")
            elif finding.cause_of == (cause.identity,):
                finding = _still_there(finding, without, known)
            judged.append(finding)
        return _with_consequences(judged)


def _is_gone(cause: Finding, before: Sequence[Finding], without: Without) -> bool:
    """Whether fewer findings are left with the identity, which two may share."""
    was = sum(f.identity == cause.identity and f.status == "open" for f in before)
    return sum(f.identity == cause.identity for f in without.found) < was


def _still_there(finding: Finding, without: Without, known: set[str]) -> Finding:
    """A finding that outlives its cause: it has others, or it is a cause itself."""
    explanation = without.explained.get(finding.identity)
    more = explanation.causes if explanation else ()
    if explanation is None or not known.issuperset(more):
        return replace(finding, cause_of=(), because=None, certainty=None)
    because = f"{finding.because}; without that, {explanation.because}"
    every = dict.fromkeys((*finding.cause_of, *more))
    return replace(finding, cause_of=tuple(every), because=because)


def _with_consequences(findings: list[Finding]) -> list[Finding]:
    below: dict[str, list[str]] = {}
    for finding in findings:
        for cause in finding.cause_of:
            below.setdefault(cause, []).append(finding.identity)
    return [
        replace(finding, consequences=tuple(below.get(finding.identity, ())))
        for finding in findings
    ]


# -- one statement left out ------------------------------------------------------------


def _left_out(matched: Matched) -> Iterator[Neutral]:
    """The program without the statement, or with the condition, that breaks the graph.

    Only if the statement itself breaks, not something that it calls: else more than
    the cause would be left out.
    """
    frame, frames = matched.group.frame, matched.group.first.frames
    if frame is None or not frames or frames[-1].line != frame.line:
        return
    if frames[-1].file != frame.file:
        return
    lines = "".join(blame.lines_of(frame.file))
    for node in ast.walk(blame.tree_of(frame.file)):
        words = _replacement(node, frame.line)
        if words is None or not isinstance(node, (ast.expr, ast.stmt)):
            continue
        part = node.test if isinstance(node, ast.If) else node
        text = _replaced(lines, part, words)
        if text is None:
            continue
        file = os.path.abspath(frame.file)
        what = (
            "False as the condition" if words == "False" else "the statement left out"
        )
        how = f"{what} at {blame.shown_briefly(frame.file)}:{frame.line}"
        yield Neutral(Overlay(texts={file: text}), how)


def _replacement(node: ast.AST, line: int) -> str | None:
    """What replaces a node that is the statement, or the condition, at a line."""
    if isinstance(node, ast.If):
        last = node.test.end_lineno or node.test.lineno
        return "False" if node.test.lineno <= line <= last else None
    if not isinstance(node, ast.Expr | ast.Assert):
        return None
    return "pass" if node.lineno <= line <= (node.end_lineno or node.lineno) else None


def _replaced(text: str, node: ast.expr | ast.stmt, words: str) -> str | None:
    """The text with a node replaced; its lines keep their numbers."""
    lines = text.splitlines(keepends=True)
    last = node.end_lineno or node.lineno
    head = lines[node.lineno - 1].encode()[: node.col_offset].decode()
    tail = lines[last - 1].encode()[node.end_col_offset :].decode()
    lines[node.lineno - 1 : last] = [head + words + "\n" * (last - node.lineno) + tail]
    edited = "".join(lines)
    try:
        ast.parse(edited)
    except SyntaxError:
        return None
    return edited
