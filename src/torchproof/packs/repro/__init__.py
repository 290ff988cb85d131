"""Repro packs: one archive that reproduces a failure of a target with torch alone.

Takes a run of `check` that contains the failure. `failure_signature` turns the finding
into data that an oracle can compare. `target_recording` runs the target once more and
writes candidate programs. `repro_runner` runs each candidate as a `repro.py`. The first
one that fails in the same way is reduced (`graphs`, `programs`), redacted, run once
more and packed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchproof import __version__
from torchproof.packs import writing
from torchproof.packs.redaction.redactor import Redactor
from torchproof.packs.repro import pack_files, readme, versions
from torchproof.packs.repro.candidate import (
    Candidate,
    Outcome,
    PackFile,
    Settings,
    VerifiedRepro,
)
from torchproof.packs.repro.failure_signature import (
    HANG_S,
    FailureSignature,
    choose_failure,
    hang_signature,
)
from torchproof.packs.repro.graphs.graph_reducer import reduce_graph, variants
from torchproof.packs.repro.programs.file_merger import Unsuitable
from torchproof.packs.repro.programs.program_reducer import reduce_program
from torchproof.packs.repro.programs.whole_program import program_candidates
from torchproof.packs.repro.repro_runner import ReproRunner
from torchproof.packs.repro.target_recording import (
    RecordingJob,
    TargetRecording,
    record_target,
)
from torchproof.packs.writing import PackResult
from torchproof.records import Run, one_line
from torchproof.records.options import ReproOptions
from torchproof.runtime import Manifest, Unverified
from torchproof.targets import Job, Options, Target

Progress = Callable[[str], None]
_SCRIPT_RUNS_ONCE = "a script runs only once: pack its saved run to include its graphs"
_MAX_GRAPHS = 40  # graphs of one target that a pack includes for reading
_LOGS = "graph_breaks,recompiles,cudagraphs,perf_hints"
# Failures that show in a captured graph, because they arise below Dynamo.
_BELOW_DYNAMO = frozenset(
    {
        "compile_error",
        "numerics",
        "hang",
        "slowdown",
        "compile_time",
        "memory",
        "cudagraph_skip",
        "cudagraph_rerecord",
    }
)


@dataclass(frozen=True)
class Subject:
    """The run of `check` that contains the failure, and how to run its target."""

    run: Run
    target: Target
    options: Options
    has_run: bool = False  # this verb already ran the target: a script runs only once


def pack(
    subject: Subject,
    options: ReproOptions,
    *,
    dest: Path | None,
    overwrite: bool,
    progress: Progress,
    command: str,
) -> PackResult:
    """Writes the pack, or raises `Unverified` if no candidate fails in the same way."""
    signature = choose_failure(subject.run, options.select)
    limit_s = subject.options.timeout_s or HANG_S
    if signature.oracle == "hang" and limit_s < HANG_S:
        signature = hang_signature(limit_s)
    code = signature.finding.code if signature.finding else signature.kind
    dest = dest or Path(f"torchproof-repro-{subject.target.name}-{code}.tar.gz")
    with writing.archive(dest, overwrite=overwrite) as stage:
        builder = _PackBuilder(subject, signature, options, progress)
        manifest = builder.build(stage, command)
    return PackResult(dest, manifest, Redactor.notes())


def shrink(
    candidate: Candidate,
    runner: ReproRunner,
    deadline: float,
    progress: Progress,
) -> Candidate:
    """Returns the smallest candidate found by `deadline` that fails in the same way."""
    count = 0

    def fails(smaller: Candidate) -> bool:
        nonlocal count
        count += 1
        progress(f"reducing: {candidate.size} to {smaller.size}, attempt {count}")
        return runner.run_forked(smaller).is_same

    if candidate.form == "graph":
        return reduce_graph(candidate, fails, deadline)
    return reduce_program(candidate, fails, deadline)


@dataclass(frozen=True)
class _PackBuilder:
    subject: Subject
    signature: FailureSignature
    options: ReproOptions
    progress: Progress

    @property
    def _has_source(self) -> bool:
        return "source" in self.options.include

    def build(self, stage: writing.Stage, command: str) -> Manifest:
        """Records the target, finds and reduces a candidate, and seals the pack."""
        redactor = Redactor.here(projects=_projects(self.subject.target))
        environment = self.subject.run.environment
        with (
            writing.scratch("torchproof-") as folder,
            versions.CollectEnv(Path(folder)) as collect_env,
        ):
            recording = self._record(Path(folder))
            settings = self._settings(train=recording.train)
            report = collect_env.text()
            facts = versions.collect_facts(environment, recording.facts, report)
            header = pack_files.header(self.signature, facts)
            with ReproRunner(
                self.signature, settings, header=header, folder=folder
            ) as runner:
                first = self._first_failing(recording, runner)
                candidate, text, outcome = self._reduced(first, runner, redactor)
        verified = VerifiedRepro(
            signature=self.signature,
            settings=settings,
            candidate=candidate,
            first=first,
            outcome=outcome,
            repro=text,
            facts=facts,
            versions=versions.text(facts, report),
            command=command,
            target=self.subject.target.text,
            minified=self.options.minify,
        )
        files = pack_files.files(verified, recording.candidates[:_MAX_GRAPHS])
        return self._seal(stage, verified, pack_files.redact(files, redactor), redactor)

    def _record(self, folder: Path) -> TargetRecording:
        """Runs the target once more; a script that has already run is not run again."""
        if self.subject.has_run and self.subject.target.kind == "script":
            return TargetRecording(refused=(_SCRIPT_RUNS_ONCE,))
        job = RecordingJob(
            Job.of(self.subject.target, self.subject.options),
            folder=str(folder),
            weights="weights" in self.options.include,
        )
        return record_target(job, self.subject.options, self.progress)

    def _settings(self, *, train: bool) -> Settings:
        options = self.subject.options
        return Settings(
            compile=options.compile,
            as_written=options.as_written or self.subject.target.kind == "script",
            train=train,
            device=str(self.subject.run.environment.get("device") or "cpu"),
        )

    def _first_failing(
        self, recording: TargetRecording, runner: ReproRunner
    ) -> Candidate:
        """Returns the first candidate that fails as the target did.

        Graphs are many: once the budget is spent, no more of them are tried.
        """
        refused = list(recording.refused)
        deadline = time.monotonic() + self.options.budget_s
        attempts: list[tuple[Candidate, Outcome]] = []
        graphs = _graphs_in_order(recording.candidates)
        in_order = [self._programs(refused), graphs]
        if self.signature.kind in _BELOW_DYNAMO and not self._has_source:
            in_order.reverse()
        for candidate in itertools.chain(*in_order):
            if candidate.form == "graph" and time.monotonic() > deadline:
                continue
            name = f"{candidate.form} {candidate.origin}".strip()
            self.progress(f"candidate {len(attempts) + 1}: {name}")
            outcome = runner.run_forked(candidate)
            if outcome.is_same:
                return candidate
            attempts.append((candidate, outcome))
        raise Unverified(_difference(self.signature, attempts, refused))

    def _programs(self, refused: list[str]) -> Iterator[Candidate]:
        """Yields the target's program; a workload's factory gets its arguments."""
        target, facts = self.subject.target, self.subject.run.environment
        names = ("size", "device", "train") if target.kind == "workload" else ()
        arguments = {k: value for k in names if (value := facts.get(k)) is not None}
        try:
            yield from program_candidates(
                target, arguments, as_written=self._has_source
            )
        except Unsuitable as reason:
            refused.append(str(reason))

    def _reduced(
        self, first: Candidate, runner: ReproRunner, redactor: Redactor
    ) -> tuple[Candidate, str, Outcome]:
        """Returns a reduced candidate, its repro, and the outcome of that one alone.

        Alone, a reduced program may fail otherwise; then the whole is packed.
        """
        for budget_s in dict.fromkeys((self.options.budget_s, 0.0)):
            candidate = self._shrink(first, runner, budget_s)
            text = redactor.source(runner.text(candidate))
            self.progress("running the repro alone")
            outcome = runner.run_isolated(text, candidate.files, {"TORCH_LOGS": _LOGS})
            if outcome.is_same:
                return candidate, text, outcome
        raise Unverified(_difference(self.signature, [(candidate, outcome)]))

    def _shrink(
        self, candidate: Candidate, runner: ReproRunner, budget_s: float
    ) -> Candidate:
        """Reduces a candidate that contains the user's source.

        `--include source` turns this off; `--minify` reduces every candidate.
        """
        private = candidate.form == "program" and not self._has_source
        if not (private or self.options.minify):
            return candidate
        deadline = time.monotonic() + budget_s
        return shrink(candidate, runner, deadline, self.progress)

    def _seal(
        self,
        stage: writing.Stage,
        verified: VerifiedRepro,
        files: dict[str, PackFile],
        redactor: Redactor,
    ) -> Manifest:
        text = redactor.text(readme.report(verified, files, redactor.counts))
        files["README.md"] = PackFile(text.encode(), "the bug report")
        for name, file in files.items():
            path = stage.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
        manifest = Manifest(
            kind="repro",
            name=redactor.text(self.subject.target.name),
            torchproof=__version__,
            target=redactor.text(verified.target),
            command=redactor.text(verified.command),
            environment=redactor.json(dict(verified.facts)),
            details=redactor.json(pack_files.details(verified)),
        )
        return stage.seal(manifest, {k: file.about for k, file in files.items()})


def _projects(target: Target) -> list[str]:
    path = Path(target.where)
    return [str(path.resolve().parent)] if path.exists() else []


def _difference(
    signature: FailureSignature,
    attempts: list[tuple[Candidate, Outcome]],
    refused: Sequence[str] = (),
) -> str:
    """Says in one line which failure was expected and what the candidates showed."""
    observed = [f"{each.form}: {one_line(o.text, 160)}" for each, o in attempts[:4]]
    observed += [one_line(reason, 120) for reason in refused[:3]]
    expected = one_line(signature.headline, 160)
    return f"expected: {expected}; got: " + ("; ".join(observed) or "no candidate")


def _graphs_in_order(graphs: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yields all graphs with synthetic tensors before any with recorded ones."""
    for depth in itertools.zip_longest(*map(variants, graphs)):
        yield from filter(None, depth)
