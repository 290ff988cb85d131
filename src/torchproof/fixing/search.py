"""The search of `fix`: draft edits -> prove them together -> repeat."""

from __future__ import annotations

import itertools
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchproof.checking import rules
from torchproof.fixing.edits import (
    Edit,
    Misfit,
    NeedsUnsafe,
    overlap,
    overlay_of,
)
from torchproof.fixing.proof import (
    RECOMPILES,
    WRONG,
    Located,
    Proof,
    Prover,
    new_findings,
    reason_of,
    reason_to_reject,
    rise,
    state,
    worse,
)
from torchproof.fixing.proof_job import Equality
from torchproof.fixing.proposals import (
    Refusal,
    Sources,
    easing_proposals,
    last_proposals,
    proposals,
)
from torchproof.records import (
    Finding,
    Fix,
    Overlay,
    Ratio,
    Tier,
)
from torchproof.records.options import FixOptions

Progress = Callable[[str], None]
Drafts = Callable[[Located, Proof, Sources], Iterator[Edit | Refusal]]


@dataclass(frozen=True)
class Rejection:
    """An edit that is not accepted; a suggested one was neither proved nor refuted."""

    edit: Edit
    why: str
    is_suggested: bool = False


@dataclass
class Search:
    """The state of a search for edits that help; edits are known by their key."""

    original: Proof
    current: Proof
    accepted: list[Edit] = field(default_factory=list)
    rejected: dict[object, Rejection] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)  # by identity
    generated: Equality | None = None  # with all accepted edits
    speed: Ratio | None = None
    rounds: int = 0
    interrupted: bool = False

    def is_known(self, edit: Edit) -> bool:
        return edit.key in {*self.rejected, *(each.key for each in self.accepted)}

    def reject(
        self, edits: Iterable[Edit], why: str, *, is_suggested: bool = False
    ) -> None:
        for edit in edits:
            self.rejected[edit.key] = Rejection(edit, why, is_suggested)

    def give_up(self, why: str) -> None:
        """Rejects what was accepted."""
        self.reject(self.accepted, why)
        self.accepted, self.current = [], self.original


class Fixer:
    """Searches for edits that cure the findings of one target.

    A proof costs as much as a whole check, so the edits of all findings are proved
    together, and divided only if that fails.
    """

    def __init__(self, prover: Prover, options: FixOptions, progress: Progress) -> None:
        self._prover, self._options, self._progress = prover, options, progress
        self.sources = Sources(prover.observed_calls)
        self._drafts: dict[object, Iterator[Edit | Refusal]] = {}
        self._drafts_of: Proof | None = None
        quick = options.effort == "quick"
        self._backend = "aot_eager" if quick else "inductor"

    def run(self, original: Proof) -> Search:
        """The search, with what it has found so far if it is interrupted."""
        search = Search(original, original)
        try:
            self._search(search)
        except KeyboardInterrupt:
            search.interrupted = True
        return search

    def _search(self, search: Search) -> None:
        while edits := self._next(search):
            search.rounds += 1
            self._try(search, edits)  # accepts or rejects at least one
        self._drop_useless(search)
        if search.accepted and not gains(search.original, search.current):
            search.give_up("what it uncovers is as bad as what it cures")
        if search.accepted:
            self._prove_generated_code(search)

    def why_not(
        self, original: Proof, fixes: Sequence[Fix], patches: Path | None
    ) -> str | None:
        """Why these fixes alone must not be delivered; a patch folder has their texts.

        They may cure less than all fixes together, but change nothing else.
        """
        self._say("what is about to be written", last=True)
        overlay = overlay_of(fixes, self.sources.originals)
        if patches is not None:
            overlay = replace(overlay, texts={})
        backend = None if self._options.effort == "quick" else "inductor"
        proof = self._prover.prove(overlay, backend, patches=patches)
        return self._reason(original, proof, [])

    def _say(self, what: str, *, last: bool = False) -> None:
        """The next proof, and how long it takes if it is like those before it."""
        prover = self._prover
        seconds = prover.expected_s
        left = f"about {seconds:.0f}" if last else f"at least {2 * seconds:.0f}"
        estimate = f" ({left} s left)" if seconds else ""
        self._progress(f"proof {prover.proofs + 1}: {what}{estimate}")

    def why_left(self, search: Search, finding: Finding) -> str:
        """Why the search leaves a finding."""
        if not self._is_eligible(finding):
            settles = finding.severity == "low" and not self._options.select
            advice = "it settles by itself: --effort full looks for a fix"
            return advice if settles else "--select leaves it out"
        for each in search.rejected.values():
            is_own = each.edit.finding.identity == finding.identity
            if is_own and not each.edit.eases:
                return f"{each.edit.title}: {each.why}"
        refusal = search.refusals.get(finding.identity)
        if refusal is not None and refusal.names_code:
            return f"no rewrite applies: {refusal.why}"
        return f"no edit is known for it: {finding.fix}"

    # -- which edits to try ------------------------------------------------------------

    def _next(self, search: Search) -> list[Edit]:
        """An edit for each finding that has some, safe ones before unsafe ones.

        What takes work out of the graph, and what leaves the finding, comes last.
        """
        for drafts in (proposals, last_proposals, _easing):
            edits = self._best(search, drafts)
            safe = [edit for edit in edits if edit.tier == "safe"]
            if edits:
                return _compatible(safe or edits)
        return []

    def _best(self, search: Search, drafts: Drafts) -> list[Edit]:
        """The best untried edit of each finding that does not follow from another."""
        found: dict[object, Edit] = {}
        best: dict[str, Edit] = {}
        for each in self._eligible(search.current):
            edit = next(self._untried(each, search, drafts), None)
            if edit is not None:  # one setting for several findings is one edit
                found[edit.key] = _also_for(found.get(edit.key), edit)
                best[each.finding.identity] = edit
        causes = {each.finding.identity: each.causes for each in search.current.located}
        roots = [e for name, e in best.items() if best.keys().isdisjoint(causes[name])]
        return [found[key] for key in dict.fromkeys(edit.key for edit in roots)]

    def _untried(
        self, each: Located, search: Search, drafts: Drafts, proof: Proof | None = None
    ) -> Iterator[Edit]:
        """Edits that may cure a finding, best first; keeps why others do not apply."""
        known = search.current if proof is None else proof
        for draft in self._drafted(each, drafts, known, is_current=proof is None):
            if isinstance(draft, Refusal):
                _keep_refusal(search.refusals, each.finding, draft)
            elif search.is_known(draft):
                continue
            elif self._may(draft):
                yield draft
            elif proof is None:
                search.reject([draft], NeedsUnsafe("it is unsafe"))

    def _drafted(
        self, each: Located, drafts: Drafts, proof: Proof, *, is_current: bool
    ) -> Iterator[Edit | Refusal]:
        """The drafts for a finding; of the current proof, they are made only once."""
        if not is_current:
            return drafts(each, proof, self.sources)
        if proof is not self._drafts_of:
            self._drafts_of, self._drafts = proof, {}
        key = drafts, state(each.finding)
        known = self._drafts.get(key) or drafts(each, proof, self.sources)
        self._drafts[key], mine = itertools.tee(known)
        return mine

    def _may(self, edit: Edit) -> bool:
        """Whether the tier of an edit is allowed."""
        return edit.tier == "safe" or self._options.unsafe

    def _eligible(self, proof: Proof) -> list[Located]:
        return [each for each in proof.located if self._is_eligible(each.finding)]

    def _is_eligible(self, finding: Finding) -> bool:
        """Whether to look for a fix; what settles by itself only if it is asked for."""
        if finding.status != "open":
            return False
        select = self._options.select
        if finding.severity == "low" and not select and self._options.effort != "full":
            return False
        return bool(rules.select([finding], list(select), []))

    # -- proofs ------------------------------------------------------------------------

    def _try(self, search: Search, edits: list[Edit]) -> None:
        """Proves edits on top of the accepted ones; divides them if that fails."""
        what = f"{len(edits)} edits together" if len(edits) > 1 else edits[0].title
        self._say(what)
        [(proof, why)] = self._proved(search, [edits])
        self._judge(search, edits, proof, why)

    def _judge(
        self, search: Search, edits: list[Edit], proof: Proof | None, why: str | None
    ) -> None:
        # One edit that uncovers as much as it cures may need the next one.
        is_harmful = len(edits) > 1 and not _is_clear(search.current, proof)
        if why is None and proof is not None and not is_harmful:
            self._keep(search, edits, proof)
        elif proof is not None and _is_faithful(proof) and why is not None:
            self._after_others(search, edits, proof, why)
        else:
            self._divide(search, edits, proof, why)

    def _after_others(
        self, search: Search, edits: list[Edit], proof: Proof, why: str
    ) -> None:
        """Goes on with edits that keep the values: adds others, or leaves some out."""
        more = self._cures_of_trouble(search, proof)
        both = _compatible([*edits, *more])
        if more:
            self._say(f"{len(both)} edits, with cures for what they uncover")
            [(joint, reason)] = self._proved(search, [both])
            if joint and reason is None and _is_clear(search.current, joint):
                self._keep(search, both, joint)
                return
        faults = _faults(search.current, proof, edits) if len(edits) > 1 else {}
        for edit, fault in faults.items():  # the others are tried with better ones
            search.reject([edit], fault)
        if not faults:
            self._divide(search, edits, proof, why)

    def _divide(
        self, search: Search, edits: list[Edit], proof: Proof | None, why: str | None
    ) -> None:
        """Tries each half of several edits; one alone is rejected."""
        half = len(edits) // 2
        is_suggested = why is not None and proof is not None and why == proof.undecided
        # Results that vary by themselves do so for each of the edits.
        if half and (not is_suggested or proof is None or proof.timed_out):
            self._try_halves(search, edits[:half], edits[half:])
        # What does not fit the text of edits accepted since is drafted again for it.
        elif proof is not None or search.current is self._drafts_of:
            search.reject(edits, why or "", is_suggested=is_suggested)

    def _try_halves(self, search: Search, first: list[Edit], rest: list[Edit]) -> None:
        """At the same time if possible: one of them fails, and so rarely helps."""
        if not self._prover.is_parallel:
            self._try(search, first)
            self._try(search, rest)
            return
        self._say(f"{len(first)} and {len(rest)} edits, apart")
        current = search.current
        results = self._proved(search, [first, rest])
        self._judge(search, first, *results[0])
        if search.current is current:
            self._judge(search, rest, *results[1])
        else:
            self._try(search, rest)

    def _keep(self, search: Search, edits: list[Edit], proof: Proof) -> None:
        left = set(map(state, proof.open))
        is_unsafe = bool(_new_unsafe(search.current, proof))
        for edit in edits:
            tier: Tier = "unsafe" if is_unsafe else edit.tier
            findings = search.current.open if edit.eases else edit.findings
            resolved = [each for each in findings if state(each) not in left]
            first, *also = resolved or edit.findings
            cured = replace(edit, tier=tier, finding=first, also=tuple(also))
            search.accepted.append(cured)
        search.current = proof

    def _proved(
        self, search: Search, groups: list[list[Edit]]
    ) -> list[tuple[Proof | None, str | None]]:
        """A proof of each group of edits, on top of the accepted ones, or why not."""
        overlays: list[Overlay | str] = []
        for edits in groups:
            try:
                every = [*search.accepted, *edits]
                overlays.append(overlay_of(every, self.sources.originals))
            except Misfit as error:
                overlays.append(str(error))
        proofs = iter(
            self._prover.prove_each(e for e in overlays if isinstance(e, Overlay))
        )
        found: list[tuple[Proof | None, str | None]] = []
        for edits, overlay in zip(groups, overlays, strict=True):
            if isinstance(overlay, str):
                found.append((None, overlay))
                continue
            proof = next(proofs)
            found.append((proof, self._why_rejected(search, edits, proof)))
        return found

    def _why_rejected(
        self, search: Search, edits: list[Edit], proof: Proof
    ) -> str | None:
        cures = [edit.findings for edit in edits if not edit.eases]
        why = self._reason(search.current, proof, cures)
        if why is None and any(edit.eases for edit in edits):
            return _not_easier(search.current, proof)
        return why

    def _reason(
        self, before: Proof, after: Proof, cures: Sequence[Sequence[Finding]]
    ) -> str | None:
        return (
            reason_to_reject(before, after, cures)
            or self._unsafe(before, after)
            or after.undecided
        )

    def _unsafe(self, before: Proof, after: Proof) -> str | None:
        """What the edits do that only `--unsafe` allows; None if it is given."""
        if self._options.unsafe:
            return None
        new = _new_unsafe(before, after)
        return NeedsUnsafe(new[0]) if new else None

    def _cures_of_trouble(self, search: Search, proof: Proof) -> list[Edit]:
        """Edits for the findings that edits cause or uncover, if each has one."""
        if not _is_new_trouble(search.current, proof):
            return []
        known = set(map(state, search.current.open))
        caused = [e for e in proof.located if state(e.finding) not in known]
        cures: dict[object, Edit] = {}
        for each in caused:
            if each.finding.status != "open":
                continue
            drafts = (
                edit
                for kind in (proposals, last_proposals)
                for edit in self._untried(each, search, kind, proof)
            )
            edit = next(drafts, None)
            if edit is None:
                return []
            cures[edit.key] = _also_for(cures.get(edit.key), edit)
        return list(cures.values())

    def _prove_generated_code(self, search: Search) -> None:
        """Proves the backend's code too, and times it; keeps a half if that fails."""
        everything = search.accepted
        why = self._generated(search, everything, search.current)
        if why is None:
            return
        half = len(everything) // 2
        for part in (everything[:half], everything[half:]) if half else ():
            begin = replace(search, accepted=[], current=search.original)
            [(proof, reason)] = self._proved(begin, [part])
            if reason is None and proof is not None:
                reason = self._generated(search, part, proof)
            if reason is None and proof is not None:
                search.reject([e for e in everything if e not in part], why)
                search.accepted, search.current = part, proof
                return
        search.give_up(why)

    def _generated(
        self, search: Search, edits: list[Edit], observed: Proof
    ) -> str | None:
        """Why generated code is not accepted; otherwise the search has its figures."""
        try:
            overlay = overlay_of(edits, self.sources.originals)
        except Misfit as error:
            return str(error)
        self._say(f"with backend {self._backend}", last=True)
        proof = self._prover.prove(overlay, self._backend)
        if proof.equality is None or proof.equality.problems:
            problems = proof.equality.problems if proof.equality else ()
            return proof.failure or next(iter(problems), "it did not run")
        if why := self._unsafe(observed, proof):
            return why
        if self._options.effort != "quick":
            self._progress("timing the edited target against the original")
            search.speed = self._prover.time_ratio(overlay)
        if search.speed is not None and search.speed.verdict == "slower":
            return (
                f"compiled, it is slower: {1 / search.speed.value:.2f} times the time"
            )
        search.generated = proof.equality
        return None

    def _drop_useless(self, search: Search) -> None:
        """Drops edits whose findings are gone without them.

        One proof without all suspects shows which of them are needed.
        """
        suspects = [
            edit
            for number, edit in enumerate(search.accepted)
            if _is_suspect(edit, search.accepted, number)
        ]
        if not suspects or len(suspects) == len(search.accepted):
            return
        self._say(f"without {len(suspects)} that may not be needed")
        proof = self._without(search, suspects)
        if proof is None or not _is_faithful(proof):
            return
        left = set(map(state, search.current.open))
        back = {state(each) for each in proof.open} - left
        useless = [e for e in suspects if not back & set(map(state, e.findings))]
        if not useless or (back and len(useless) == len(suspects)):
            return
        if len(useless) < len(suspects):
            self._say(f"without {len(useless)} that are not needed")
            proof = self._without(search, useless)
        if proof is not None and self._is_as_good(search, proof):
            search.reject(useless, "the other edits are enough")
            cured = [finding for edit in useless for finding in edit.findings]
            kept = [edit for edit in search.accepted if edit not in useless]
            last = replace(kept[-1], also=(*kept[-1].also, *cured))
            search.accepted, search.current = [*kept[:-1], last], proof

    def _without(self, search: Search, edits: list[Edit]) -> Proof | None:
        others = [edit for edit in search.accepted if edit not in edits]
        try:
            overlay = overlay_of(others, self.sources.originals)
        except Misfit:
            return None
        return self._prover.prove(overlay)

    def _is_as_good(self, search: Search, proof: Proof) -> bool:
        """Whether a proof with fewer edits leaves no more than that with all."""
        left = set(map(state, search.current.open))
        return (
            set(map(state, proof.open)) <= left
            and worse(search.current, proof) is None
            and self._reason(search.original, proof, []) is None
        )


def _easing(each: Located, proof: Proof, sources: Sources) -> Iterator[Edit]:
    """Settings for findings that stay."""
    return easing_proposals(each, proof)


def _also_for(known: Edit | None, edit: Edit) -> Edit:
    """One edit for the findings of both."""
    if known is None:
        return edit
    return replace(known, also=(*known.also, *edit.findings))


def _is_faithful(proof: Proof) -> bool:
    """Whether the edited target ran and computed the same: only the cure is open."""
    return proof.equality is not None and not proof.equality.problems


def _faults(before: Proof, after: Proof, edits: list[Edit]) -> dict[Edit, str]:
    """Which of several edits do not help, by what is found with all of them.

    An edit without effect, and the one nearest to what appears in its function.
    """
    left = set(map(state, after.open))
    faults = {
        edit: f"{edit.finding.code} is still there"
        for edit in edits
        if not edit.eases and all(state(each) in left for each in edit.findings)
    }
    for new in new_findings(before, after):
        distances = {
            edit: abs((new.line or 0) - (each.line or 0))
            for edit in edits
            for each in edit.findings
            if (each.file, each.function) == (new.file, new.function)
        }
        if distances:
            nearest = min(distances, key=lambda edit: distances[edit])
            faults.setdefault(nearest, reason_of(new))
    return faults


def _is_clear(before: Proof, after: Proof | None) -> bool:
    """Whether nothing hints that one of several edits does harm."""
    return after is not None and gains(before, after) and not _new_unsafe(before, after)


def _is_new_trouble(before: Proof, after: Proof) -> bool:
    return bool(new_findings(before, after)) or worse(before, after) is not None


def _is_suspect(edit: Edit, accepted: Sequence[Edit], number: int) -> bool:
    """Whether other edits may have cured what an edit was accepted for.

    They replace its lines, or it is a setting for recompiles, which end with the breaks
    that are behind them.
    """
    others = [each for each in accepted if each is not edit]
    if not edit.replacements and number < len(accepted) - 1:
        return all(finding.kind in RECOMPILES for finding in edit.findings)
    return all(
        any(_replaces(other, finding) for other in others) for finding in edit.findings
    )


def _replaces(edit: Edit, finding: Finding) -> bool:
    return any(
        change.file == finding.file
        and change.line <= (finding.line or 0) < change.line + len(change.old)
        for change in edit.replacements
    )


def _not_easier(before: Proof, after: Proof) -> str | None:
    """Why edits that cure nothing do not help; None if less goes wrong."""
    pairs = [_counts_of(name, before, after) for name in ("graphs", *WRONG)]
    if any(new < old for old, new in pairs):
        return rise(("graphs",), before, after)
    return f"it changes nothing: graphs stay at {pairs[0][0]}"


def _new_unsafe(before: Proof, after: Proof) -> list[str]:
    """What edits do that only unsafe edits may do, and those before them do not."""
    earlier = before.equality.unsafe if before.equality else ()
    now = after.equality.unsafe if after.equality else ()
    return [each for each in now if each not in earlier]


def _keep_refusal(
    refusals: dict[str, Refusal], finding: Finding, refusal: Refusal
) -> None:
    """Keeps the refusal that says most: that of the last rewrite that names code.

    The first rewrites are for special patterns; that a program has none is no reason.
    A rewrite tries the innermost frame first: its callers say less about the finding.
    """
    kept = refusals.get(finding.identity)
    same_rewrite = kept is not None and kept.rewrite == refusal.rewrite
    if kept is None or (refusal.names_code and not (same_rewrite and kept.names_code)):
        refusals[finding.identity] = refusal


def _compatible(edits: Iterable[Edit]) -> list[Edit]:
    """The edits that can be made together, the first ones first."""
    chosen: list[Edit] = []
    for edit in edits:
        if not any(overlap(edit, other) for other in chosen):
            chosen.append(edit)
    return chosen


def _counts_of(name: str, before: Proof, after: Proof) -> tuple[int, int]:
    return before.counts.get(name) or 0, after.counts.get(name) or 0


def gains(before: Proof, after: Proof) -> bool:
    """Whether fewer things go wrong, and none more often than before."""
    if worse(before, after) is not None:
        return False
    pairs = [_counts_of(name, before, after) for name in (*WRONG, "graphs")]
    calls, compiled = _counts_of("compiled_calls", before, after)
    better = any(new < old for old, new in pairs) or compiled > calls
    return better or len(after.open) < len(before.open)
