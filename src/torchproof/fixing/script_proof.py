"""Proves edits of a script: the whole script runs again, edited, for each proof.

Settings become lines of the script: nothing else could set them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from torchproof.fixing import rewrites
from torchproof.fixing.edits import Edit, replacements
from torchproof.fixing.observed_calls import ObservedCall
from torchproof.fixing.proof import WRONG, Proof, Prover
from torchproof.fixing.proof_job import ProofJob
from torchproof.fixing.proposals import Refusal, Sources
from torchproof.fixing.rewrites import compiler_settings
from torchproof.process import Conditions, Followed
from torchproof.records import (
    Overlay,
    UserError,
    WrapperEvent,
    user_frame,
)
from torchproof.targets import Options, Target

_LONG_S = 60.0  # a script that takes longer runs again only if the user says so
_SHOWN = 3  # of the files that it writes
_RUNS = 3  # more of a script with an edit, at least: once as it is, twice edited


class ScriptProver(Prover):
    """Runs the whole script for each proof, one after the other."""

    module = "torchproof.fixing.script_child"
    quick_ratio = 8.0  # one run of the original is the whole of a proof
    can_time = can_screen = False

    def __init__(
        self, target: Target, options: Options, folder: Path, *, yes: bool
    ) -> None:
        super().__init__(target, options, folder)
        self._yes = yes
        self._file = Path(target.where)
        self._content = self._file.read_bytes()
        self._seconds = 0.0
        self._written: list[str] = []
        self._original: Proof | None = None
        self._is_repeatable = False
        self._proofs: list[Proof] = []

    @property
    def notice(self) -> str:
        return (
            f"running {self._target.text} as it is; it runs again for each proof (if"
            " it writes files, only with --yes)"
        )

    @property
    def is_parallel(self) -> bool:
        return False

    def original(self) -> Proof:
        begin = time.monotonic()
        self._original = self._finish(self._start(Overlay()))
        self._seconds = self.expected_s = time.monotonic() - begin
        return self._original

    def prove(
        self,
        edits: Overlay,
        backend: str | None = None,
        *,
        patches: Path | None = None,
    ) -> Proof:
        if backend == "aot_eager":  # the script's own backends, or none
            for proof in self._proofs:
                if proof.overlay == edits:
                    return proof
            backend = None
        if not self._is_repeatable:
            self._run_again()
        proof = super().prove(edits, backend, patches=patches)
        self._proofs.append(proof)
        return proof

    def prove_each(self, jobs: Iterable[tuple[Overlay, str | None]]) -> list[Proof]:
        return [self.prove(*job) for job in jobs]

    def observed_calls(self, edits: Overlay) -> list[ObservedCall]:
        return []

    def drafts(
        self, drafts: Iterator[Edit | Refusal], proof: Proof, sources: Sources
    ) -> Iterator[Edit | Refusal]:
        """The drafts as lines of the program; without those that have no line."""
        for each in drafts:
            if isinstance(each, Refusal) or each.replacements:
                yield each
            elif each.settings and (edit := _as_lines(each, proof, sources)):
                yield edit

    def _run_again(self) -> None:
        """Runs the original once more: what varies by itself proves nothing."""
        name = self._target.text
        did = f"wrote {_few(self._written)}" if self._written else ""
        if self._seconds > _LONG_S:
            did = f"took {self._seconds:.0f} s"
        if did and not self._yes:
            raise UserError(
                f"{name} {did}, and fix would run it at least {_RUNS} more times: add"
                " --yes, or give it other arguments"
            )
        assert self._original is not None
        again = self._finish(self._start(Overlay()))
        why = again.failure or again.undecided
        for count in (*WRONG, "graphs", "calls"):
            before, after = self._original.counts.get(count), again.counts.get(count)
            if why is None and before != after:
                why = f"{count.replace('_', ' ')} were {before}, then {after}"
        if why is not None:
            raise UserError(
                f"there is no proof for {name}, which differs from run to run: {why};"
                " seed what is random in it, and let it not read what it wrote"
            )
        self._is_repeatable = True

    def _fresh(self, job: ProofJob) -> Followed:
        child = super()._fresh(job)
        self._written = child.last("written").get("files", self._written)
        if self._file.read_bytes() != self._content:
            raise UserError(
                f"{self._target.text} changed while it ran: there is no proof"
            )
        return child

    @property
    def _conditions(self) -> Conditions:
        conditions = super()._conditions
        limit_s = conditions.timeout_s
        if limit_s is None and self._original is not None:
            limit_s = _LONG_S + 10 * self._seconds  # an edit may let it hang
        # Else the order of sets would vary from run to run.
        environment = {**conditions.environment, "PYTHONHASHSEED": "0"}
        return replace(conditions, environment=environment, timeout_s=limit_s)


def _few(files: list[str]) -> str:
    shown, more = files[:_SHOWN], len(files) - _SHOWN
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _as_lines(edit: Edit, proof: Proof, sources: Sources) -> Edit | None:
    """Settings as lines where the program compiles; None if that is not one place."""
    wrappers = proof.observation.of(WrapperEvent)
    frames = (user_frame(each.frames) for each in wrappers if each.calls != 0)
    places = list({(f.file, f.line): f for f in frames if f is not None}.values())
    if not places or (len(places) > 1 and _is_argument(edit)):
        return None
    file = os.path.abspath(places[0].file)
    original = text = sources.text(file, proof)
    try:
        for setting in edit.settings:
            parsed = rewrites.parsed(file, text)
            site = rewrites.Site(edit.finding, parsed, places[0].line)
            text = compiler_settings.with_setting(site, setting)
    except (rewrites.Refused, UserError):
        return None
    changes = replacements(file, original, text)
    return replace(edit, settings=(), replacements=changes)


def _is_argument(edit: Edit) -> bool:
    return any(setting.name.startswith("compile.") for setting in edit.settings)
