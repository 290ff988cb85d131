"""Repro packs: a failure of a target as one archive that anyone can run.

Comes in: a run of `check` that saw the failure. The target is run once more and candidates
of programs are written from what it compiles (`capturing`, `ordering`); each is run as
the repro it would be (`trying`), the first that fails in the same way is made smaller
(`graphs`, `programs`), and what is left is redacted, run once more and packed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torchproof import __version__
from torchproof.packs import writing
from torchproof.packs.made import Made
from torchproof.packs.redaction.redactor import Redactor
from torchproof.packs.repro import pack_files
from torchproof.packs.repro.candidate import Candidate, Outcome, Settings
from torchproof.packs.repro.candidate_order import Candidates
from torchproof.packs.repro.failure_signature import Symptom
from torchproof.packs.repro.repro_runner import Court
from torchproof.packs.repro.shrinking import smaller
from torchproof.packs.repro.signatures import chosen
from torchproof.packs.repro.target_recording import Captured, captured
from torchproof.records import Run, one_line
from torchproof.runtime import Manifest, Unverified
from torchproof.targets import Options, Target

Progress = Callable[[str], None]
_ONCE = "a script is run once: pack its saved run to have its graphs too"
_LONGEST_S = 60.0  # that a repro waits before it calls a compilation hung
_GRAPHS = 40  # of one target that go into a pack, to be read
# Evidence of a finding that lies behind the user's line.
_BEHIND = re.compile(r"in (/.+\.py):(\d+) ")
_LOGS = "graph_breaks,recompiles,cudagraphs,perf_hints"


@dataclass(frozen=True)
class ReproOptions:
    """What a repro pack is asked for."""

    select: tuple[str, ...] = ()
    minify: bool = False
    budget_s: float = 120.0
    include: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Subject:
    """What failed: a run of `check`, and how it was run."""

    run: Run
    target: Target
    options: Options
    has_run: bool = False  # for this pack: a script is not run again then


def pack(
    subject: Subject,
    asked: ReproOptions,
    *,
    dest: Path | None,
    overwrite: bool,
    progress: Progress,
    command: str,
) -> Made:
    """Makes the pack, or raises `Unverified` with what differs."""
    symptom = _timed(chosen(subject.run, asked.select), subject.options)
    code = symptom.finding.code if symptom.finding else symptom.kind
    dest = dest or Path(f"torchproof-repro-{subject.target.name}-{code}.tar.gz")
    with writing.archive(dest, overwrite=overwrite) as stage:
        manifest = _Making(subject, symptom, asked, progress).into(stage, command)
    return Made(dest, manifest)


def _timed(symptom: Symptom, options: Options) -> Symptom:
    """A hang is one that outlasts --timeout, if that is shorter than a minute."""
    limit_s = options.timeout_s or _LONGEST_S
    if symptom.judge != "hang" or limit_s >= _LONGEST_S:
        return symptom
    headline = f"torch.compile does not end within {limit_s:.0f} s"
    expected = {**symptom.expected, "seconds": limit_s}
    return replace(symptom, headline=headline, expected=expected)


class _Making:
    def __init__(
        self,
        subject: Subject,
        symptom: Symptom,
        asked: ReproOptions,
        progress: Progress,
    ) -> None:
        self._run, self._target = subject.run, subject.target
        self._options, self._has_run = subject.options, subject.has_run
        self._symptom, self._asked, self._progress = symptom, asked, progress
        self._redactor = Redactor.here(projects=_projects(subject.target))

    def into(self, stage: writing.Stage, command: str) -> Manifest:
        """Everything from the recording to the sealed pack."""
        with writing.scratch("torchproof-") as folder:
            seen = self._captured(Path(folder))
            candidates = Candidates(
                seen,
                self._target,
                arguments=self._arguments(),
                include=self._asked.include,
            )
            settings = self._settings(train=seen.train)
            facts = pack_files.gathered(self._run.environment, seen)
            top = pack_files.header(self._symptom, facts)
            with Court(self._symptom, settings, header=top, folder=folder) as court:
                first = self._found(candidates, court)
                candidate = self._smaller(first, court)
                text = self._redactor.source(court.text(candidate))
                outcome = court.clean_text(text, candidate.files)
                if not outcome.is_same:
                    raise Unverified(_differs(self._symptom, [(candidate, outcome)]))
                log = self._logged(court, text, candidate)
        written = pack_files.Written(
            self._symptom,
            settings,
            candidate,
            first,
            outcome,
            text,
            facts,
            command,
            self._target.text,
            self._asked.minify,
        )
        found = pack_files.files(written, candidates.graphs()[:_GRAPHS], log)
        return self._sealed(stage, written, found)

    def _captured(self, folder: Path) -> Captured:
        """What a run of the target tells; nothing of a script that has run already."""
        if self._has_run and self._target.kind == "script":
            return Captured(refused=(_ONCE,))
        weights = "weights" in self._asked.include
        return captured(
            self._target,
            self._options,
            folder=folder,
            more={"weights": weights, "place": self._place()},
            progress=self._progress,
        )

    def _place(self) -> dict[str, object]:
        """The innermost line that is not torch's own: of a library, if there is one."""
        found = self._symptom.finding
        if found is None:
            return {}
        behind = [_BEHIND.match(line) for line in found.evidence]
        for match in filter(None, behind):
            return {"file": match[1], "line": int(match[2])}
        return {"file": found.file, "line": found.line}

    def _arguments(self) -> dict[str, object]:
        """The keywords that a workload is made with."""
        if self._target.kind != "workload":
            return {}
        here = self._run.environment
        names = ("size", "device", "train")
        return {k: here[k] for k in names if here.get(k) is not None}

    def _settings(self, *, train: bool) -> Settings:
        device = self._run.environment.get("device") or "cpu"
        as_written = self._options.as_written or self._target.kind == "script"
        return Settings(
            compile=self._options.compile,
            as_written=as_written,
            train=train,
            device=str(device),
        )

    def _found(self, candidates: Candidates, court: Court) -> Candidate:
        """The first candidate that fails as the target did."""
        tried: list[tuple[Candidate, Outcome]] = []
        for candidate in candidates.of(self._symptom):
            what = f"{candidate.form} {candidate.origin}".strip()
            self._progress(f"candidate {len(tried) + 1}: {what}")
            outcome = court.quick(candidate)
            if outcome.is_same:
                return candidate
            tried.append((candidate, outcome))
        raise Unverified(_differs(self._symptom, tried, candidates.refused))

    def _smaller(self, candidate: Candidate, court: Court) -> Candidate:
        """What shows the user's source is cut down and renamed, unless asked for."""
        private = candidate.form != "graph" and "source" not in self._asked.include
        if not (private or self._asked.minify):
            return candidate
        deadline = time.monotonic() + self._asked.budget_s
        return smaller(
            candidate, court, deadline, anonymous=private, progress=self._progress
        )

    def _logged(self, court: Court, text: str, candidate: Candidate) -> str:
        """What torch logs when the repro runs: of the target's own run nothing."""
        self._progress("the repro once more, with torch's logs")
        return court.clean_text(text, candidate.files, {"TORCH_LOGS": _LOGS}).output

    def _sealed(
        self,
        stage: writing.Stage,
        written: pack_files.Written,
        found: dict[str, pack_files.Paper],
    ) -> Manifest:
        hide = self._redactor
        files = pack_files.redacted(found, hide)
        rows = pack_files.listing(
            {k: (len(v.content), v.about) for k, v in files.items()}
        )
        text = hide.text(pack_files.readme(written, rows, hide.counts))
        files["README.md"] = pack_files.Paper(text.encode(), "the report, to be filed")
        for name, paper in files.items():
            path = stage.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(paper.content)
        manifest = Manifest(
            kind="repro",
            name=hide.text(self._target.name),
            torchproof=__version__,
            target=hide.text(written.target),
            command=hide.text(written.command),
            environment=hide.json(dict(written.facts)),
            details=hide.json(pack_files.details(written)),
        )
        return stage.seal(manifest, {k: paper.about for k, paper in files.items()})


def _projects(target: Target) -> list[str]:
    where = Path(target.where)
    return [str(where.resolve().parent)] if where.exists() else []


def _differs(
    symptom: Symptom,
    tried: list[tuple[Candidate, Outcome]],
    refused: list[str] | None = None,
) -> str:
    """What was wanted, and what came instead, in one line."""
    came = [
        f"{candidate.form}: {one_line(each.text, 160)}" for candidate, each in tried[:4]
    ]
    came += [one_line(reason, 120) for reason in (refused or [])[:3]]
    wanted = one_line(symptom.headline, 160)
    return f"wanted: {wanted}; " + ("; ".join(came) or "nothing could be written")
