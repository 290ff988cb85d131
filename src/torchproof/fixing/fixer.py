"""`fix`: check -> draft edits -> prove them -> repeat -> drop what is not needed."""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchproof.checking import EFFORTS, rules
from torchproof.fixing.delivery import Check, assert_deliverable, deliver
from torchproof.fixing.edits import (
    Edit,
    Misfit,
    NeedsUnsafe,
    located,
    overlap,
    overlay_of,
    unified,
)
from torchproof.fixing.proof import (
    Located,
    Proof,
    Prover,
    new_findings,
    reason_to_reject,
    state,
)
from torchproof.fixing.proof_job import Equality
from torchproof.fixing.proposals import (
    Refusal,
    Sources,
    easing_proposals,
    last_proposals,
    proposals,
)
from torchproof.fixing.source_text import digest
from torchproof.records import (
    Finding,
    Fix,
    Fixing,
    JsonObject,
    Ratio,
    Receipt,
    Run,
    Tier,
    UserError,
    store,
)
from torchproof.records.options import FixOptions
from torchproof.targets import Options, Target, assert_size, instead_of_script
from torchproof.targets import parse as parse_target

Progress = Callable[[str], None]


@dataclass
class Search:
    """The state of a search for edits that help."""

    current: Proof
    quick: bool = False
    accepted: list[Edit] = field(default_factory=list)
    receipts: dict[object, Receipt] = field(default_factory=dict)  # by key of edit
    before: dict[object, Proof] = field(default_factory=dict)  # each edit, by its key
    tried: dict[object, tuple[Edit, str]] = field(default_factory=dict)  # with why
    refusals: dict[str, Refusal] = field(default_factory=dict)  # by identity
    suggested: dict[object, Edit] = field(
        default_factory=dict
    )  # neither proved nor not
    rounds: int = 0
    interrupted: bool = False


class Fixer:
    """Searches for edits that cure the findings of one target."""

    def __init__(self, prover: Prover, options: FixOptions, progress: Progress) -> None:
        self._prover, self._options, self._progress = prover, options, progress
        self.sources = Sources(prover.observed_calls)

    def run(self, original: Proof) -> Search:
        """The search, with what it has found so far if it is interrupted."""
        search = Search(original, self._options.effort == "quick")
        try:
            self._search(search, original)
        except KeyboardInterrupt:
            search.interrupted = True
        return search

    def _search(self, search: Search, original: Proof) -> None:
        while True:
            search.rounds += 1
            choices = (
                self._choices(search)
                or self._last_choices(search)
                or self._easing_choices(search)
            )
            if not choices:
                break
            first = _compatible(edits[0] for edits in choices)
            if not self._together(search, first):
                self._one_by_one(search, choices)
        self._drop_unneeded(search, original)
        if search.accepted and not gains(original, search.current):
            why = "what it uncovers is as bad as what it cures"
            search.tried |= {edit.key: (edit, why) for edit in search.accepted}
            search.accepted, search.current = [], original
        if search.accepted:
            self._prove_generated_code(search, original)

    def why_not(
        self, original: Proof, fixes: Sequence[Fix], patches: Path | None
    ) -> str | None:
        """Why these fixes alone must not be delivered; a patch folder has their texts.

        They may cure less than all fixes together, but change nothing else.
        """
        self._progress(f"proof {self._prover.proofs + 1}: what is about to be written")
        overlay = overlay_of(fixes, self.sources.originals)
        if patches is not None:
            overlay = replace(overlay, texts={})
        backend = None if self._options.effort == "quick" else "inductor"
        proof = self._prover.prove(overlay, self._progress, backend, patches=patches)
        return self._reason(original, proof, [])

    def _choices(self, search: Search) -> list[list[Edit]]:
        """The edits to try for each finding that has some, the best first."""
        by_key: dict[object, Edit] = {}
        keys: list[list[object]] = []
        for each in search.current.located:
            if not self._is_eligible(each.finding):
                continue
            own: list[object] = []
            for proposal in proposals(each, search.current, self.sources):
                if isinstance(proposal, Refusal):
                    _keep_refusal(search.refusals, each.finding, proposal)
                elif proposal.key in by_key:  # one setting for several findings
                    first = by_key[proposal.key]
                    also = (*first.also, each.finding)
                    by_key[proposal.key] = replace(first, also=also)
                elif not self._may(proposal):
                    why = NeedsUnsafe("it is unsafe")
                    search.tried.setdefault(proposal.key, (proposal, why))
                elif proposal.key not in search.tried:
                    by_key[proposal.key] = proposal
                    own.append(proposal.key)
            keys.append(own)
        return [[by_key[key] for key in own] for own in keys if own]

    def _last_choices(self, search: Search) -> list[list[Edit]]:
        """One edit that takes work out of the graph, for each finding that has some."""
        found: dict[object, Edit] = {}
        for each in search.current.located:
            for proposal in self._last_proposals(each, search):
                if proposal.key not in search.tried and self._may(proposal):
                    found.setdefault(proposal.key, proposal)
                    break
        return [[edit] for edit in found.values()]

    def _easing_choices(self, search: Search) -> list[list[Edit]]:
        """Settings for the findings that stay; each is one edit for all of them."""
        found: dict[object, Edit] = {}
        for each in search.current.located:
            if not self._is_eligible(each.finding):
                continue
            for edit in easing_proposals(each, search.current):
                if edit.key in found:
                    first = found[edit.key]
                    edit = replace(first, also=(*first.also, each.finding))
                found[edit.key] = edit
        return [[edit] for key, edit in found.items() if key not in search.tried]

    def _last_proposals(self, each: Located, search: Search) -> Iterator[Edit]:
        """Drafted one at a time, because a draft may have to run the target."""
        if not self._is_eligible(each.finding):
            return
        for proposal in last_proposals(each, search.current, self.sources):
            if isinstance(proposal, Refusal):
                _keep_refusal(search.refusals, each.finding, proposal)
            else:
                yield proposal

    def _may(self, edit: Edit) -> bool:
        """Whether the tier of an edit is allowed."""
        return edit.tier == "safe" or self._options.unsafe

    def _is_eligible(self, finding: Finding) -> bool:
        """Whether to look for a fix; `quick` leaves out what settles by itself."""
        if finding.status != "open":
            return False
        if finding.severity == "low" and self._options.effort == "quick":
            return False
        return bool(rules.select([finding], list(self._options.select), []))

    def _together(self, search: Search, edits: list[Edit]) -> bool:
        """Tries the first edit for each finding at once, then those that helped."""
        if len(edits) < 2:
            return False
        proof, why = self._proved(search, edits)
        if why is None and proof and not _new_unsafe(search.current, proof):
            self._keep(search, edits, proof)
            return True
        if proof is None or proof.failure or proof.equality is None:
            return False
        left = set(map(state, proof.open))
        helped = [
            edit
            for edit in edits
            if any(state(finding) not in left for finding in edit.findings)
        ]
        if len(helped) < 2 or len(helped) == len(edits) or proof.equality.problems:
            return False
        return self._accept(search, helped)

    def _one_by_one(self, search: Search, choices: list[list[Edit]]) -> None:
        """Tries each edit alone; stops at the first that helps for a finding."""
        helped: list[Edit] = []
        for edits in choices:
            for edit in edits:
                if edit.key in search.tried or any(overlap(edit, e) for e in helped):
                    continue  # if its finding is still there, it is drafted again
                if self._accept(search, [edit]):
                    helped.append(edit)
                    break

    def _accept(self, search: Search, edits: list[Edit]) -> bool:
        """Proves edits on top of the accepted ones, and keeps them if that succeeds."""
        what = edits[0].title if len(edits) == 1 else f"{len(edits)} edits together"
        self._progress(f"proof {self._prover.proofs + 1}: {what}")
        proof, why = self._proved(search, edits)
        if why is not None and len(edits) == 1 and proof is not None:
            proof, why, edits = self._with_what_it_reveals(search, edits[0], proof, why)
        if why is not None or proof is None:
            # Without a proof it did not fit the text: it is drafted again.
            for edit in edits if len(edits) == 1 and proof is not None else ():
                search.tried[edit.key] = edit, why or ""
                if proof is not None and why == proof.undecided:
                    search.suggested[edit.key] = edit
            return False
        self._keep(search, edits, proof)
        return True

    def _keep(self, search: Search, edits: list[Edit], proof: Proof) -> None:
        for edit in edits:
            tier: Tier = "unsafe" if _new_unsafe(search.current, proof) else edit.tier
            left = set(map(state, proof.open))
            findings = search.current.open if edit.eases else edit.findings
            resolved = [each for each in findings if state(each) not in left]
            first, *also = resolved or edit.findings
            cured = replace(edit, tier=tier, finding=first, also=tuple(also))
            search.accepted.append(cured)
            search.before[edit.key] = search.current
            search.receipts[edit.key] = receipt(search.current, proof)
            search.tried[edit.key] = edit, ""
        search.current = proof

    def _proved(
        self, search: Search, edits: list[Edit]
    ) -> tuple[Proof | None, str | None]:
        try:
            overlay = overlay_of([*search.accepted, *edits], self.sources.originals)
        except Misfit as error:
            return None, str(error)
        proof = self._prover.prove(overlay, self._progress)
        cures = [edit.findings for edit in edits if not edit.eases]
        why = self._reason(search.current, proof, cures)
        if why is None and any(edit.eases for edit in edits):
            why = _not_easier(search.current, proof)
        return proof, why

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

    def _with_what_it_reveals(
        self, search: Search, edit: Edit, proof: Proof, why: str
    ) -> tuple[Proof | None, str | None, list[Edit]]:
        """Tries an edit together with cures for the findings that it causes."""
        if proof.failure or (proof.equality and proof.equality.problems):
            return proof, why, [edit]
        caused = set(map(state, new_findings(search.current, proof)))
        more: list[Edit] = []
        for each in proof.located:
            if state(each.finding) in caused:
                more += itertools.islice(self._untried(each, search, proof), 1)
        if not more or len(more) < len(caused):
            return proof, why, [edit]
        both = [edit, *more]
        joint, joint_why = self._proved(search, both)
        if joint_why is not None:
            return proof, why, [edit]
        return joint, None, both

    def _untried(self, each: Located, search: Search, proof: Proof) -> Iterator[Edit]:
        """Edits that may cure a finding of a proof, best first."""
        for drafts in (proposals, last_proposals):
            for draft in drafts(each, proof, self.sources):
                if isinstance(draft, Refusal) or draft.key in search.tried:
                    continue
                if self._may(draft):
                    yield draft

    def _prove_generated_code(self, search: Search, original: Proof) -> None:
        """Proves the backend's code too, and times it; drops an edit that fails."""
        edits = search.accepted
        equality, ratio, why = self._generated(search, edits)
        if why is not None:
            attempts = ((each, [e for e in edits if e is not each]) for each in edits)
            for dropped, others in attempts if len(edits) > 1 else ():
                equality, ratio, other_why = self._generated(search, others)
                if other_why is None:
                    search.tried[dropped.key] = dropped, why
                    edits = others
                    break
            else:
                search.tried |= {edit.key: (edit, why) for edit in edits}
                search.accepted, search.current = [], original
                return
            overlay = overlay_of(edits, self.sources.originals)
            search.accepted = edits
            search.current = self._prover.prove(overlay, self._progress)
        assert equality is not None
        for edit in edits:
            search.receipts[edit.key] = replace(
                search.receipts[edit.key],
                backend=equality.backend,
                outputs=equality.verdict,
                max_rel_error=equality.max_rel_error,
                speed=None if ratio is None else ratio.value,
                speed_low=None if ratio is None else ratio.low,
                speed_high=None if ratio is None else ratio.high,
            )

    def _generated(
        self, search: Search, edits: list[Edit]
    ) -> tuple[Equality | None, Ratio | None, str | None]:
        """How generated code compares, its speed, and why it is not accepted."""
        try:
            overlay = overlay_of(edits, self.sources.originals)
        except Misfit as error:
            return None, None, str(error)
        quick = self._options.effort == "quick"
        backend = "aot_eager" if quick else "inductor"
        self._progress(f"proof {self._prover.proofs + 1}: with backend {backend}")
        proof = self._prover.prove(overlay, self._progress, backend=backend)
        if proof.equality is None or proof.equality.problems:
            problems = proof.equality.problems if proof.equality else ()
            return None, None, proof.failure or next(iter(problems), "it did not run")
        if why := self._unsafe(search.current, proof):
            return None, None, why
        if quick:
            return proof.equality, None, None
        self._progress("timing the edited target against the original")
        ratio = self._prover.time_ratio(overlay)
        if ratio is not None and ratio.verdict == "slower":
            why = f"compiled, it is slower: {1 / ratio.value:.2f} times the time"
            return proof.equality, ratio, why
        return proof.equality, ratio, None

    def _drop_unneeded(self, search: Search, original: Proof) -> None:
        """Drops each edit without which the result is the same."""
        left = set(map(state, search.current.open))
        quick = self._options.effort == "quick"
        for key in [edit.key for edit in search.accepted]:
            if len(search.accepted) == 1:
                break
            at = [each.key for each in search.accepted].index(key)
            edit = search.accepted[at]
            if quick and edit.replacements:  # needed when it was accepted
                continue
            others = search.accepted[:at] + search.accepted[at + 1 :]
            try:
                overlay = overlay_of(others, self.sources.originals)
            except (Misfit, KeyError):
                continue
            self._progress(f"proof {self._prover.proofs + 1}: without {edit.title!r}")
            proof = self._prover.prove(overlay, self._progress)
            cures = [
                [finding] for finding in original.open if state(finding) not in left
            ]
            same = set(map(state, proof.open)) <= left
            if edit.eases:
                same = same and _not_easier(proof, search.current) is not None
            if same and self._reason(original, proof, cures) is None:
                if at == len(others) - 1:
                    others[-1] = _taking_over(search, edit, others[-1], proof)
                search.accepted = others
                search.tried[edit.key] = edit, "the other edits are enough"
                search.current = proof


def _taking_over(search: Search, dropped: Edit, last: Edit, proof: Proof) -> Edit:
    """The last edit with the cures of the one before it, which it makes superfluous.

    Its receipt begins where that of the other one did.
    """
    search.before[last.key] = search.before[dropped.key]
    search.receipts[last.key] = receipt(search.before[dropped.key], proof)
    return replace(last, also=(*last.also, *dropped.findings))


_FEWER = ("graphs", "recompiles", "skipped_frames")


def _not_easier(before: Proof, after: Proof) -> str | None:
    """Why edits that cure nothing do not help; None if less goes wrong."""
    counts = [(before.counts.get(n) or 0, after.counts.get(n) or 0) for n in _FEWER]
    for name, (old, new) in zip(_FEWER, counts, strict=True):
        if new > old:
            return f"{name.replace('_', ' ')} rise from {old} to {new}"
    if all(old == new for old, new in counts):
        return f"it changes nothing: graphs stay at {counts[0][0]}"
    return None


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


def gains(before: Proof, after: Proof) -> bool:
    """Whether fewer things go wrong: breaks, recompiles, calls that run eagerly."""
    fewer = ("graph_breaks", "skipped_frames", "recompiles", "graphs")
    better = any(
        (after.counts.get(name) or 0) < (before.counts.get(name) or 0) for name in fewer
    )
    more = (after.counts.get("compiled_calls") or 0) > (
        before.counts.get("compiled_calls") or 0
    )
    return better or more or len(after.open) < len(before.open)


def receipt(before: Proof, after: Proof) -> Receipt:
    assert after.equality is not None

    def pair(name: str) -> tuple[int | None, int | None]:
        return before.counts.get(name), after.counts.get(name)

    return Receipt(
        breaks=pair("graph_breaks"),
        recompiles=pair("recompiles"),
        graphs=pair("graphs"),
        outputs=after.equality.verdict,
        max_rel_error=after.equality.max_rel_error,
        compared=after.equality.compared,
        unseen_inputs=after.equality.unseen,
        exceptions=after.equality.exceptions,
        backend=after.equality.backend,
    )


def fix(
    target: str | Target,
    options: Options | None = None,
    *,
    fix_options: FixOptions | None = None,
    progress: Progress = lambda text: None,
    command: str = "",
    save_in: Path = store.RUNS,
) -> Run:
    """Finds edits that cure findings of the target, proves them, saves the run."""
    target = parse_target(target) if isinstance(target, str) else target
    options = options or Options()
    fix_options = fix_options or FixOptions()
    _assert_possible(target, options, fix_options)
    store.assert_writable(save_in)
    started, begin = datetime.datetime.now(), time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(store.scratch(save_in))
        prover = stack.enter_context(Prover(target, options, folder))
        progress(f"running {target.text} as it is")
        original = prover.original(progress)
        fixer = Fixer(prover, fix_options, progress)
        search = fixer.run(original)
        run = Run(
            id=f"{started:%Y%m%d-%H%M}-{target.name}",
            target=target.text,
            strategy="full",
            environment=original.observation.environment,
            counts=original.counts,
            findings=tuple(each.finding for each in original.located),
            fixes=tuple(_fixes(search, fixer.sources, original)),
            fixing=replace(
                _summary(search, prover, time.monotonic() - begin),
                sources={
                    file: digest(fixer.sources.originals[file])
                    for file in search.current.overlay.texts
                },
            ),
            options=_options_json(options, fix_options),
            verb="fix",
            command=command,
            started=started.isoformat(timespec="seconds"),
            ending="interrupted" if search.interrupted else "finished",
            calls=original.observation.forms,
        )
        if not search.interrupted:
            check = functools.partial(fixer.why_not, original)
            run = _delivered(run, fix_options, check)
            run = _with_outcome(run, proofs=prover.proofs)
        return store.save(rules.with_texts(run), save_in)


def _delivered(run: Run, options: FixOptions, check: Check) -> Run:
    """Writes the fixes where the options ask for it."""
    run = deliver(run, write=options.write, patch=options.patch, check=check)
    alone = any(fix.status == "applied" for fix in run.fixes)
    return _with_outcome(run, proved_alone=alone)


def _with_outcome(run: Run, **changes: Any) -> Run:
    assert run.fixing is not None
    return replace(run, fixing=replace(run.fixing, **changes))


def _options_json(options: Options, fix_options: FixOptions) -> JsonObject:
    """The options of the run, as those of a check."""
    names = ("compile", "as_written", "train", "device", "size")
    return {
        **{name: getattr(options, name) for name in names},
        "effort": fix_options.effort,
        "select": list(fix_options.select),
        "unsafe": fix_options.unsafe,
    }


def _assert_possible(target: Target, options: Options, fix_options: FixOptions) -> None:
    if target.kind in {"trace", "source"}:
        raise UserError(
            f"{target.text} cannot be run: fix proves its edits on a workload or a"
            " factory"
        )
    if ".ipynb" in target.text:
        raise UserError(
            f"{target.text} is in a notebook: fix edits modules, so put the factory"
            " into a file: torchproof fix FILE.py:FACTORY"
        )
    if target.kind == "script":
        raise UserError(
            f"{target.text} is a script, and fix runs its target many times:"
            f" {instead_of_script(target, 'fix')}"
        )
    if fix_options.effort not in EFFORTS or fix_options.effort == "static":
        raise UserError("fix has to run the target: --effort quick, normal or full")
    assert_size(target, options.size)
    assert_deliverable(write=fix_options.write, patch=fix_options.patch)
    rules.select([], list(fix_options.select), [])


def _fixes(search: Search, sources: Sources, original: Proof) -> Iterable[Fix]:
    texts = dict(sources.originals)
    for edit in search.accepted:
        overlay = overlay_of([edit], texts)
        diff = "".join(
            unified(file, texts[file], text) for file, text in overlay.texts.items()
        )
        changes = [
            located(change, sources.originals[change.file], texts[change.file])
            for change in edit.replacements
        ]
        texts |= overlay.texts
        placed = replace(edit, replacements=tuple(changes))
        yield _fix(placed, diff, search.receipts.get(edit.key))
    accepted_keys = {edit.key for edit in search.accepted}
    for key, (edit, why) in search.tried.items():
        if key not in accepted_keys and why:
            if key in search.suggested:
                yield _suggested(edit, why, texts)
            else:
                fix = replace(_fix(edit, "", None), status="rejected", why=why)
                unsafe = isinstance(why, NeedsUnsafe)
                yield replace(fix, refused="tier") if unsafe else fix


def _suggested(edit: Edit, why: str, texts: Mapping[str, str]) -> Fix:
    """A draft without a proof, as it would change what the accepted edits leave."""
    try:
        changed = overlay_of([edit], texts).texts
    except Misfit:
        changed = {}
    diff = "".join(unified(file, texts[file], text) for file, text in changed.items())
    return replace(
        _fix(edit, diff, None), tier="suggested", status="suggested", why=why
    )


def _fix(edit: Edit, diff: str, receipt: Receipt | None) -> Fix:
    finding = edit.finding
    # An inserted import is not the place that the edit is about.
    changes = [r for r in edit.replacements if r.old] or edit.replacements
    return Fix(
        title=edit.title,
        tier=edit.tier,
        status="verified",
        codes=tuple(dict.fromkeys(each.code for each in edit.findings)),
        findings=tuple(dict.fromkeys(each.identity for each in edit.findings)),
        file=changes[0].file if changes else None,
        line=changes[0].at or changes[0].line if changes else None,
        function=finding.function,
        owner=finding.owner,
        replacements=edit.replacements,
        settings=edit.settings,
        marks=edit.marks,
        diff=diff,
        receipt=receipt,
    )


def _summary(search: Search, prover: Prover, seconds: float) -> Fixing:
    reasons = {}
    for finding in search.current.open:
        tried = [
            f"{edit.title}: {why}"
            for edit, why in search.tried.values()
            if why and edit.finding.identity == finding.identity and not edit.eases
        ]
        refusal = search.refusals.get(finding.identity)
        why = tried[0] if tried else f"no edit is known for it: {finding.fix}"
        if finding.severity == "low" and search.quick:
            why = "it settles by itself: --effort normal looks for a fix"
        if not tried and refusal is not None and refusal.names_code:
            why = f"no rewrite applies: {refusal.why}"
        reasons[finding.identity] = why
    return Fixing(
        rounds=search.rounds,
        proofs=prover.proofs,
        seconds=round(seconds, 1),
        counts=search.current.counts,
        remaining=tuple(search.current.open),
        reasons=reasons,
        edited={f: digest(t) for f, t in search.current.overlay.texts.items()},
    )
