"""The search of `fix`: draft edits -> prove them together -> repeat."""

from __future__ import annotations

import itertools
import math
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
from torchproof.fixing.script_proof import ScriptProver
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
# The seconds of a search with effort quick, unless the original takes long.
_QUICK_S = 100.0
_BREAKS = frozenset({"graph_break", "skipped_frame", "compile_error"})
_LATE = "not proved: the time of --effort quick was over; --effort normal has no limit"


@dataclass(frozen=True)
class Rejection:
    """An edit that is not accepted; a suggested one was neither proved nor refuted."""

    edit: Edit
    why: str
    is_suggested: bool = False


@dataclass(frozen=True)
class Trade:
    """Edits that cause findings, but fewer than they cure: for want of better ones."""

    before: Proof
    accepted: tuple[Edit, ...]  # before
    edits: tuple[Edit, ...]
    proof: Proof


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
    # Edits that cause less than they cure, on top of accepted ones, and their proof.
    trade: Trade | None = None
    interrupted: bool = False
    is_late: bool = False  # the time was over before all edits were tried

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
        self._is_quick = options.effort == "quick"
        self._backend = "aot_eager" if self._is_quick else "inductor"
        self._limit_s = math.inf
        self._is_slow = False  # three proofs take longer than the limit
        self._proof_backend: str | None = None
        # A proof, and that of the same edits with the backend's code.
        self._coded: tuple[Proof | None, Proof | None] = None, None

    def run(self, original: Proof) -> Search:
        """The search, with what it has found so far if it is interrupted."""
        search = Search(original, original)
        if self._is_quick:
            self._limit_s = max(
                _QUICK_S, self._prover.quick_ratio * self._prover.seconds
            )
            is_slow = 4 * self._prover.seconds > self._limit_s
            self._is_slow = is_slow and self._prover.can_screen
            # One proof then shows both what Dynamo does and the backend's values.
            self._proof_backend = self._backend if self._prover.any_backend else None
        try:
            self._search(search)
        except KeyboardInterrupt:
            search.interrupted = True
        return search

    def _search(self, search: Search) -> None:
        while True:
            while not search.is_late and (edits := self._next(search)):
                search.rounds += 1
                if edits := self._screened(search, edits):
                    self._try(search, edits)  # accepts or rejects at least one
            if not self._traded(search):
                break
        if search.accepted and not gains(search.original, search.current):
            search.give_up("what it uncovers is as bad as what it cures")
        if search.accepted:
            self._prove_generated_code(search)

    def _traded(self, search: Search) -> bool:
        """Accepts edits that cause findings that leave less than what is accepted."""
        trade, search.trade = search.trade, None
        if trade is None or _breaks(trade.proof) >= _breaks(search.current):
            return False
        search.accepted, search.current = list(trade.accepted), trade.before
        for edit in trade.edits:
            search.rejected.pop(edit.key, None)
        self._keep(search, list(trade.edits), trade.proof)
        return True

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
        """The next proof, how long it takes if it is like the last, and the limit."""
        seconds, left = self._prover.expected_s, self._limit_s - self._prover.seconds
        notes = [f"about {seconds:.0f} s"] if seconds else []
        if left < math.inf:
            notes.append(f"the search has {max(left, 0):.0f} s left")
        elif seconds and not last:
            notes.append(f"at least {2 * seconds:.0f} s left")
        shown = f" ({', '.join(notes)})" if notes else ""
        self._progress(f"proof {self._prover.proofs + 1}: {what}{shown}")

    def _is_late(self, search: Search) -> bool:
        """Whether another proof, and then the last one, would end after the limit.

        Without any accepted edit the search goes on until the limit.
        """
        last = 1 if self._proof_backend is None else 0
        return self._ends_late(1 + last if search.accepted else 0)

    def _ends_late(self, proofs: int) -> bool:
        end = self._prover.seconds + proofs * self._prover.expected_s
        return end > self._limit_s

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
        if search.is_late:
            return _LATE
        return f"no edit is known for it: {finding.fix}"

    # -- which edits to try ------------------------------------------------------------

    def _next(self, search: Search) -> list[Edit]:
        """An edit for each finding that has some, safe ones before unsafe ones.

        Those for recompiles wait: many recompiles end with the breaks before them. What
        takes work out of the graph, and what leaves the finding, comes last.
        """
        for recompiles in (False, True):
            for drafts in (proposals, last_proposals):
                every = self._best(search, drafts)
                edits = [e for e in every if _is_for_recompiles(e) == recompiles]
                safe = [edit for edit in edits if edit.tier == "safe"]
                if edits:
                    return _compatible(safe or edits)
        return _compatible(self._best(search, _easing))

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
            return self._made(each, drafts, proof)
        if proof is not self._drafts_of:
            self._drafts_of, self._drafts = proof, {}
        key = drafts, state(each.finding)
        known = self._drafts.get(key) or self._made(each, drafts, proof)
        self._drafts[key], mine = itertools.tee(known)
        return mine

    def _made(
        self, each: Located, drafts: Drafts, proof: Proof
    ) -> Iterator[Edit | Refusal]:
        made = drafts(each, proof, self.sources)
        if isinstance(self._prover, ScriptProver):
            return self._prover.drafts(made, proof, self.sources)
        return made

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

    def _try(self, search: Search, *groups: list[Edit]) -> None:
        """Proves edits on top of the accepted ones; divides them if that fails.

        Several groups at the same time if possible: one of them fails, and so a proof
        of the second one on top of the first rarely helps.
        """
        if self._is_late(search):
            search.is_late = True
            search.reject(itertools.chain(*groups), _LATE, is_suggested=True)
            return
        current = search.current
        at_once = groups if self._prover.is_parallel else groups[:1]
        self._say(" and ".join(map(_what, at_once)))
        results = self._proved(search, at_once)
        for edits, (proof, why) in zip(at_once, results, strict=True):
            if search.current is current:
                self._judge(search, edits, proof, why)
            else:
                self._try(search, edits)
        for edits in groups[len(at_once) :]:
            self._try(search, edits)

    def _judge(
        self, search: Search, edits: list[Edit], proof: Proof | None, why: str | None
    ) -> None:
        # One edit that uncovers as much as it cures may need the next one.
        is_harmful = len(edits) > 1 and not _is_clear(search.current, proof)
        if why is None and proof is not None and not is_harmful:
            self._keep(search, edits, proof)
        elif proof is not None and _is_faithful(proof) and why is not None:
            self._note_trade(search, edits, proof)
            self._after_others(search, edits, proof, why)
        elif why and (raised := _raising(proof, edits)):
            search.reject(raised, why)  # the others are tried with better ones
        else:
            self._divide(search, edits, proof, why)

    def _note_trade(self, search: Search, edits: list[Edit], proof: Proof) -> None:
        """Remembers edits that cause findings, if nothing else is wrong with them."""
        best = search.trade.proof if search.trade else search.current
        known, left = search.current, set(map(state, proof.open))
        if (
            _breaks(proof) < _breaks(best)
            and _times(proof) <= _times(known)
            and worse(known, proof) is None
            and self._unsafe(known, proof) is None
            and proof.undecided is None
            and not any(left.issuperset(map(state, edit.findings)) for edit in edits)
        ):
            accepted = tuple(search.accepted)
            search.trade = Trade(known, accepted, tuple(edits), proof)

    def _after_others(
        self, search: Search, edits: list[Edit], proof: Proof, why: str
    ) -> None:
        """Goes on with edits that keep the values: adds others, or leaves some out."""
        more = [] if self._is_late(search) else self._cures_of_trouble(search, proof)
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
        rest = [edit for edit in edits if edit not in faults]
        if not faults:
            self._divide(search, edits, proof, why)
        elif rest and self._ends_late(3):  # before better ones for what is at fault
            self._try(search, rest)

    def _screened(self, search: Search, *groups: list[Edit]) -> list[Edit]:
        """The edits without those that already the first call shows to be bad.

        Where a whole proof takes long, it is too dear to find the bad one of several.
        """
        every = [edit for edits in groups for edit in edits]
        if not self._is_slow or len(every) < 2 or self._ends_late(0):
            return every
        self._say(f"the first call of {len(every)} edits")
        at_once = [groups] if self._prover.is_parallel else [[each] for each in groups]
        found = [each for some in at_once for each in self._screens(search, some)]
        sound = (self._sound(search, *each) for each in zip(groups, found, strict=True))
        return [edit for edits in sound for edit in edits]

    def _sound(
        self, search: Search, edits: list[Edit], found: tuple[Proof | None, str | None]
    ) -> list[Edit]:
        """Rejects what one compiled call refutes, or looks for it in each half."""
        proof, why = found
        if proof is None or why is None or proof.undecided:
            return edits
        is_true = _is_faithful(proof) and self._unsafe(search.current, proof) is None
        bad = _harms(search.current, proof, edits)
        bad |= dict.fromkeys(_raising(proof, edits), why)
        if not is_true and not bad and len(edits) == 1:
            bad = {edits[0]: why}
        for edit, fault in bad.items():
            search.reject([edit], fault)
        rest, half = [e for e in edits if e not in bad], len(edits) // 2
        if is_true or not rest:
            return rest
        return self._screened(search, *([rest] if bad else [rest[:half], rest[half:]]))

    def _screens(
        self, search: Search, groups: Sequence[list[Edit]]
    ) -> list[tuple[Proof | None, str | None]]:
        """What one compiled call shows of each group of edits."""
        overlays = [self._overlay(search, edits) for edits in groups]
        fitting = [each for each in overlays if isinstance(each, Overlay)]
        proofs = iter(self._prover.screen_each(fitting))
        found: list[tuple[Proof | None, str | None]] = []
        for edits, overlay in zip(groups, overlays, strict=True):
            proof = next(proofs) if isinstance(overlay, Overlay) else None
            why = self._why_rejected(search, edits, proof) if proof else None
            found.append((proof, why))
        return found

    def _overlay(self, search: Search, edits: Sequence[Edit]) -> Overlay | str:
        """Edits on top of the accepted ones, or why they do not fit."""
        try:
            return overlay_of([*search.accepted, *edits], self.sources.originals)
        except Misfit as error:
            return str(error)

    def _divide(
        self, search: Search, edits: list[Edit], proof: Proof | None, why: str | None
    ) -> None:
        """Tries each half of several edits; one alone is rejected."""
        half = len(edits) // 2
        is_suggested = why is not None and proof is not None and why == proof.undecided
        # Results that vary by themselves do so for each of the edits.
        if half and (not is_suggested or proof is None or proof.timed_out):
            self._try(search, edits[:half], edits[half:])
        # What does not fit the text of edits accepted since is drafted again for it.
        elif proof is not None or search.current is self._drafts_of:
            search.reject(edits, why or "", is_suggested=is_suggested)

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
        self, search: Search, groups: Sequence[list[Edit]]
    ) -> list[tuple[Proof | None, str | None]]:
        """A proof of each group of edits, on top of the accepted ones, or why not.

        With one group, the second processor proves the backend's code for what is
        accepted so far, which is the last proof if the group fails. If proofs take long
        it does so for the group, whose edits are left after the first call.
        """
        overlays = [self._overlay(search, edits) for edits in groups]
        backend = self._proof_backend
        jobs = [(e, backend) for e in overlays if isinstance(e, Overlay)]
        is_idle = len(groups) == 1 and self._is_quick and self._prover.is_parallel
        ahead = [(e, self._backend) for e, _ in jobs if self._is_slow]
        is_new = search.accepted and search.current is not self._coded[0]
        if not ahead and is_new:
            ahead = [(search.current.overlay, self._backend)]
        if not is_idle or backend is not None:
            ahead = []
        proofs = iter(self._prover.prove_each([*jobs, *ahead]))
        found: list[tuple[Proof | None, str | None]] = []
        for edits, overlay in zip(groups, overlays, strict=True):
            if isinstance(overlay, str):
                found.append((None, overlay))
                continue
            proof = next(proofs)
            found.append((proof, self._why_rejected(search, edits, proof)))
        for coded in proofs:
            self._coded = found[0][0] if self._is_slow else search.current, coded
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
        old, new = _counts_of("recompiles", search.current, proof)
        known = {  # recompiles may be known, and happen more often
            state(finding)
            for finding in search.current.open
            if new <= old or finding.kind not in RECOMPILES
        }
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
        why = self._generated(search, search.current)
        if why is None:
            return
        half = len(everything) // 2
        for part in (everything[:half], everything[half:]) if half else ():
            begin = replace(search, accepted=[], current=search.original)
            [(proof, reason)] = self._proved(begin, [part])
            if reason is None and proof is not None:
                reason = self._generated(search, proof)
            if reason is None and proof is not None:
                search.reject([e for e in everything if e not in part], why)
                search.accepted, search.current = part, proof
                return
        search.give_up(why)

    def _generated(self, search: Search, observed: Proof) -> str | None:
        """Why generated code is not accepted; otherwise the search has its figures."""
        overlay = observed.overlay
        known, proof = self._coded
        if self._proof_backend is not None:
            known, proof = observed, observed
        if proof is None or known is not observed:
            self._say("with generated code", last=True)
            proof = self._prover.prove(overlay, self._backend)
        if proof.equality is None or proof.equality.problems:
            problems = proof.equality.problems if proof.equality else ()
            return proof.failure or next(iter(problems), "it did not run")
        if why := self._unsafe(observed, proof):
            return why
        if self._options.effort != "quick" and self._prover.can_time:
            self._progress("timing the edited target against the original")
            search.speed = self._prover.time_ratio(overlay)
        if search.speed is not None and search.speed.verdict == "slower":
            return (
                f"compiled, it is slower: {1 / search.speed.value:.2f} times the time"
            )
        search.generated = proof.equality
        return None


def _easing(each: Located, proof: Proof, sources: Sources) -> Iterator[Edit]:
    """Settings for findings that stay."""
    return easing_proposals(each, proof)


def _also_for(known: Edit | None, edit: Edit) -> Edit:
    """One edit for the findings of both."""
    if known is None:
        return edit
    return replace(known, also=(*known.also, *edit.findings))


def _what(edits: Sequence[Edit]) -> str:
    return f"{len(edits)} edits together" if len(edits) > 1 else edits[0].title


def _is_for_recompiles(edit: Edit) -> bool:
    return all(finding.kind in RECOMPILES for finding in edit.findings)


def _is_faithful(proof: Proof) -> bool:
    """Whether the edited target ran and computed the same: only the cure is open."""
    return proof.equality is not None and not proof.equality.problems


def _faults(before: Proof, after: Proof, edits: list[Edit]) -> dict[Edit, str]:
    """Which of several edits do not help, by what is found with all of them.

    An edit without effect, and the one nearest to what appears in its function.
    """
    faults = _idle(after, edits)
    for new in new_findings(before, after):
        if (nearest := _nearest(new, edits)) is not None:
            faults.setdefault(nearest, reason_of(new))
    return faults


def _harms(before: Proof, after: Proof, edits: list[Edit]) -> dict[Edit, str]:
    """Edits without effect, and those that cause at least as much as they cure.

    What appears in a function without edits is due to the setting, if there is one.
    """
    found = _idle(after, edits)
    left = set(map(state, after.open))
    settings = [edit for edit in edits if edit.settings]
    caused: dict[Edit, list[Finding]] = {edit: [] for edit in edits}
    for new in new_findings(before, after):
        nearest = _nearest(new, edits)
        blamed = [nearest] if nearest else settings
        if len(blamed) == 1:
            caused[blamed[0]].append(new)
    for edit, own in caused.items():
        cured = sum(state(each) not in left for each in edit.findings)
        if own and len(own) >= cured:
            found.setdefault(edit, reason_of(own[0]))
    return found


def _idle(after: Proof, edits: Iterable[Edit]) -> dict[Edit, str]:
    left = set(map(state, after.open))
    return {
        edit: f"{edit.finding.code} is still there"
        for edit in edits
        if not edit.eases and all(state(each) in left for each in edit.findings)
    }


def _nearest(new: Finding, edits: Iterable[Edit]) -> Edit | None:
    """The edit nearest to a finding in its function."""
    distances = {
        edit: abs((new.line or 0) - (each.line or 0))
        for edit in edits
        for each in edit.findings
        if (each.file, each.function) == (new.file, new.function)
    }
    return min(distances, key=lambda edit: distances[edit], default=None)


def _breaks(proof: Proof) -> int:
    return sum(each.kind in _BREAKS for each in proof.open)


def _times(proof: Proof) -> int:
    """How often breaks happen."""
    return sum(each.count or 0 for each in proof.open if each.kind in _BREAKS)


def _raising(proof: Proof | None, edits: Sequence[Edit]) -> list[Edit]:
    """Those of several edits that wrote a line which raised an exception."""
    if proof is None or len(edits) < 2:
        return []
    raised = set(proof.raised)
    written = {e: {n.strip() for r in e.replacements for n in r.new} for e in edits}
    return [edit for edit in edits if raised & (written[edit] - {""})]


def _is_clear(before: Proof, after: Proof | None) -> bool:
    """Whether nothing hints that one of several edits does harm."""
    return after is not None and gains(before, after) and not _new_unsafe(before, after)


def _is_new_trouble(before: Proof, after: Proof) -> bool:
    return bool(new_findings(before, after)) or worse(before, after) is not None


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
