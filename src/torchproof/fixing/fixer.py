"""`fix`: a search for edits, delivered and saved as a run."""

from __future__ import annotations

import contextlib
import datetime
import functools
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchproof.checking import EFFORTS, rules
from torchproof.fixing.delivery import Check, assert_deliverable, deliver
from torchproof.fixing.edits import (
    Edit,
    Misfit,
    NeedsUnsafe,
    located,
    overlay_of,
    unified,
)
from torchproof.fixing.proof import Prover
from torchproof.fixing.proposals import Sources
from torchproof.fixing.script_proof import ScriptProver
from torchproof.fixing.search import Fixer, Progress, Search
from torchproof.fixing.source_text import digest
from torchproof.records import (
    Fix,
    Fixing,
    JsonObject,
    Receipt,
    Run,
    UserError,
    store,
)
from torchproof.records.options import FixOptions
from torchproof.targets import Options, Target, assert_as_written, assert_size
from torchproof.targets import parse as parse_target


def _receipt(search: Search, *, by_script: bool) -> Receipt:
    """What the proofs of all accepted edits together show."""
    before, after = search.original.counts, search.current.counts
    observed = search.current.equality
    assert observed is not None
    outputs, speed = search.generated or observed, search.speed
    return Receipt(
        breaks=(before.get("graph_breaks"), after.get("graph_breaks")),
        recompiles=(before.get("recompiles"), after.get("recompiles")),
        graphs=(before.get("graphs"), after.get("graphs")),
        outputs=outputs.verdict,
        max_rel_error=outputs.max_rel_error,
        compared=observed.compared,
        unseen_inputs=observed.unseen,
        exceptions=observed.exceptions,
        backend=outputs.backend,
        by_script=by_script,
        speed=None if speed is None else speed.value,
        speed_low=None if speed is None else speed.low,
        speed_high=None if speed is None else speed.high,
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
        prover = stack.enter_context(_prover(target, options, fix_options, folder))
        progress(prover.notice)
        original = prover.original()
        fixer = Fixer(prover, fix_options, progress)
        search = fixer.run(original)
        run = Run(
            id=f"{started:%Y%m%d-%H%M}-{target.name}",
            target=target.text,
            strategy="as-written" if target.kind == "script" else "full",
            environment=original.observation.environment,
            counts=original.counts,
            findings=tuple(each.finding for each in original.located),
            fixes=tuple(_fixes(search, fixer.sources, target)),
            fixing=replace(
                _summary(search, fixer, prover.proofs, time.monotonic() - begin),
                sources={
                    file: digest(fixer.sources.originals[file])
                    for file in search.current.overlay.texts
                },
            ),
            options={
                **_options_json(options, fix_options),
                "arguments": list(target.arguments),
            },
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


def _prover(
    target: Target, options: Options, fix_options: FixOptions, folder: Path
) -> Prover:
    if target.kind == "script":
        return ScriptProver(target, options, folder, yes=fix_options.yes)
    return Prover(target, options, folder)


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
            f"{target.text} cannot be run: fix proves its edits on a workload, a"
            " factory or a script"
        )
    if ".ipynb" in target.text:
        raise UserError(
            f"{target.text} is in a notebook: fix edits modules, so put the factory"
            " into a file: torchproof fix FILE.py:FACTORY"
        )
    if fix_options.effort not in EFFORTS or fix_options.effort == "static":
        raise UserError("fix has to run the target: --effort quick, normal or full")
    assert_size(target, options.size)
    assert_as_written(target, "timeout_s", "quiet", records=[options])
    assert_deliverable(write=fix_options.write, patch=fix_options.patch)
    rules.select([], list(fix_options.select), [])


def _fixes(search: Search, sources: Sources, target: Target) -> Iterable[Fix]:
    texts = dict(sources.originals)
    by_script = target.kind == "script"
    files = {r.file for edit in search.accepted for r in edit.replacements}
    receipt = _receipt(search, by_script=by_script) if search.accepted else None
    for edit in search.accepted:
        overlay = overlay_of([edit], texts)
        diff = unified(overlay.texts, texts, files)
        changes = [
            located(change, sources.originals[change.file], texts[change.file])
            for change in edit.replacements
        ]
        texts |= overlay.texts
        placed = replace(edit, replacements=tuple(changes))
        yield _fix(placed, diff, receipt)
    for each in search.rejected.values():
        if each.is_suggested:
            yield _suggested(each.edit, each.why, texts)
        else:
            fix = replace(_fix(each.edit, "", None), status="rejected", why=each.why)
            unsafe = isinstance(each.why, NeedsUnsafe)
            yield replace(fix, refused="tier") if unsafe else fix


def _suggested(edit: Edit, why: str, texts: Mapping[str, str]) -> Fix:
    """A draft without a proof, as it would change what the accepted edits leave."""
    try:
        changed = overlay_of([edit], texts).texts
    except Misfit:
        changed = {}
    return replace(
        _fix(edit, unified(changed, texts), None),
        tier="suggested",
        status="suggested",
        why=why,
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


def _summary(search: Search, fixer: Fixer, proofs: int, seconds: float) -> Fixing:
    return Fixing(
        rounds=search.rounds,
        proofs=proofs,
        seconds=round(seconds, 1),
        counts=search.current.counts,
        remaining=tuple(search.current.open),
        reasons={
            finding.identity: fixer.why_left(search, finding)
            for finding in search.current.open
        },
        edited={f: digest(t) for f, t in search.current.overlay.texts.items()},
    )
