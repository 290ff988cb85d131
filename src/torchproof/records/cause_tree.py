"""The open findings of a run as a tree: causes, and what each of them explains."""

from __future__ import annotations

from collections.abc import Iterable

from torchproof.records.run import Finding
from torchproof.records.severity import SEVERITIES, Severity


class CauseTree:
    """The causes among the open findings; a finding that explains nothing is one too.

    A saved run may name identities that it does not have, or in a circle: such a link
    is ignored. One tree serves a whole report: building it visits each finding once.
    """

    def __init__(self, findings: Iterable[Finding]) -> None:
        still_open = [f for f in findings if f.status == "open"]
        self._by_identity = {f.identity: f for f in reversed(still_open)}
        self._roots: dict[str, Finding] = {}  # by identity: the last cause above it
        self.causes: list[Finding] = []
        self._effects: dict[str, list[Finding]] = {}
        for finding in still_open:
            root = self._root(finding)
            if root.identity == finding.identity:
                self.causes.append(finding)
            else:
                self._effects.setdefault(root.identity, []).append(finding)
        self._shown = {c.identity: c for c in reversed(self.causes)}

    @property
    def total(self) -> int:
        """The number of findings that others explain."""
        return sum(map(len, self._effects.values()))

    def effects(self, cause: Finding) -> list[Finding]:
        """Everything that a cause explains, also through other findings."""
        if self._shown.get(cause.identity) is not cause:
            return []
        return self._effects.get(cause.identity, [])

    def severity(self, cause: Finding) -> Severity:
        """The severity of the worst finding that disappears with a cause."""
        every = [cause.severity, *(f.severity for f in self.effects(cause))]
        return min(every, key=SEVERITIES.index)

    def is_effect(self, finding: Finding) -> bool:
        if finding.status != "open":
            return False
        return self._root(finding).identity != finding.identity

    def causes_of(self, finding: Finding) -> list[Finding]:
        """The findings that directly explain one."""
        known = (self._by_identity.get(each) for each in finding.cause_of)
        return [f for f in known if f is not None and f.identity != finding.identity]

    def _root(self, finding: Finding) -> Finding:
        """The last cause above a finding; the finding itself in a circle."""
        passed: dict[str, Finding] = {}
        root = finding
        while root.identity not in self._roots:
            if root.identity in passed:
                for each in passed.values():  # what leads into a circle has no cause
                    self._roots[each.identity] = each
                return self._roots[finding.identity]
            passed[root.identity] = root
            above = self.causes_of(root)
            if not above:
                self._roots[root.identity] = root
                break
            root = above[0]
        last = self._roots[root.identity]
        for each in passed.values():
            self._roots[each.identity] = last
        return last
