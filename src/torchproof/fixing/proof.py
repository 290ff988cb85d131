"""Tries edits in a fresh process: what the compiler does, what the results are."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from torchproof.checking import counts_of, explain, rules
from torchproof.fixing.observed_calls import ObservedCall
from torchproof.fixing.proof_job import NOT_FRESH, Equality, ProofJob
from torchproof.fixing.source_text import read_source
from torchproof.observe import audit, gather
from torchproof.process import (
    DEVNULL,
    Child,
    Conditions,
    Ended,
    Entry,
    Followed,
    ForkServer,
    JobEnding,
    follow,
    spawn,
)
from torchproof.records import (
    DeadTensorEvent,
    Finding,
    Frame,
    Observation,
    Overlay,
    Ratio,
    UserError,
    WrapperEvent,
    blame,
    one_line,
    stats,
)
from torchproof.targets import Job, Options, Target, overlay

# A line of code: its file, its function, its text without indentation.
Code = tuple[str, str, str]
_NO_LIMIT_S = 1e6
# What the backends import when they first compile a module with parameters.
_COMPILER = ["torch._inductor.compile_fx"]
_GRAPH_MODES = {"reduce-overhead", "max-autotune"}
# The counts of what goes wrong: no fix may raise one of them.
WRONG = ("graph_breaks", "recompiles", "skipped_frames")
RECOMPILES = frozenset({"recompile", "recompile_limit", "specialization"})


@dataclass(frozen=True)
class Located:
    """A finding, and the stack that it was found in, innermost frame last.

    `causes` are the identities of the findings that it follows from.
    """

    finding: Finding
    frames: tuple[Frame, ...]
    causes: tuple[str, ...] = ()
    entries: tuple[Frame, ...] = ()  # the functions that the program compiles


@dataclass(frozen=True)
class Proof:
    """What an edited target did when it was compiled, and how its results compare."""

    overlay: Overlay
    observation: Observation
    located: tuple[Located, ...] = ()
    counts: dict[str, int | None] = field(default_factory=dict)
    equality: Equality | None = None
    failure: str | None = None  # the edited target could not run
    raised: tuple[str, ...] = ()  # the lines of code that an exception came through
    timed_out: bool = False

    @property
    def undecided(self) -> str | None:
        """Why the proof neither accepts nor refutes the edits."""
        if self.timed_out:
            return "the proof reached the limit of --timeout"
        return self.equality.undecided if self.equality else None

    @property
    def open(self) -> list[Finding]:
        return [each.finding for each in self.located if each.finding.status == "open"]


class Prover:
    """Runs proofs of one target; each has a process of its own."""

    module = "torchproof.fixing.proof_child"
    quick_ratio = 2.0  # of a search with effort quick to the first run
    can_time = True  # the original and an edited target, in turns
    can_screen = True  # by compiling only the first call

    def __init__(self, target: Target, options: Options, folder: Path) -> None:
        self._target, self._options = target, options
        self._folder = folder
        self._on_exit = ExitStack()
        self._server: ForkServer | None = None
        # For edits of files that the first server has imported with another module.
        self._second: ForkServer | None = None
        self._imported: set[str] = set()  # such files
        self._libraries: dict[str, str] = {}  # the files of imported modules
        self._others: list[str] = []  # modules of packages without files to edit
        self._watches_lifetimes = False  # of tensors in CUDA graphs
        self.proofs = 0
        self._begin = time.monotonic()
        self.expected_s = 0.0  # of the next proof: as long as the last one
        self._probes = 0
        self._memory = 0  # the most bytes that a proof took
        self.any_backend = False  # the values are comparable with those of each one

    def __enter__(self) -> Prover:
        return self

    def __exit__(self, *error: object) -> None:
        self._on_exit.close()

    @property
    def seconds(self) -> float:
        """Since the prover was made."""
        return time.monotonic() - self._begin

    @property
    def _hidden(self) -> dict[str, str]:
        """Hides GPUs from a target on the CPU: all proofs see the same machine."""
        return {"CUDA_VISIBLE_DEVICES": ""} if self._options.device == "cpu" else {}

    @property
    def notice(self) -> str:
        """What happens first, in one line."""
        return f"running {self._target.text} as it is"

    @property
    def is_parallel(self) -> bool:
        """Whether two proofs at a time take less time than one after the other."""
        forks = self._server is not None and self._server.is_alive
        memory = psutil.virtual_memory().available
        return forks and _processors() > 1 and memory > 3 * self._memory

    def original(self) -> Proof:
        """Observes the target without edits, and records the reference."""
        self._server = self._new_server()
        started = self._start(Overlay())
        self._server.prepare({"modules": _COMPILER})
        proof = self._finish(started)
        traced = {os.path.realpath(file) for file in proof.observation.traced or ()}
        may_change = {
            name
            for name, file in self._libraries.items()
            if os.path.realpath(file) in traced
        }
        names = [name for name in self._libraries if name not in may_change]
        self._server.prepare({"modules": names})
        packages = {_package(name) for name in may_change}
        self._others = [name for name in names if _package(name) not in packages]
        return proof

    def _new_server(self) -> ForkServer:
        words = ("-m", "torchproof.fixing.proof_server")
        # Dynamo looks at CUDA's random state, and CUDA does not work after a fork: with
        # a GPU in sight the server ends, and every proof is a new process.
        server = ForkServer(spawn(*words, environment=self._hidden, output=DEVNULL))
        self._on_exit.callback(server.close)
        return server

    def _server_for(self, edits: Overlay) -> ForkServer | None:
        if self._imported.isdisjoint(edits.texts):
            return self._server
        if self._second is None:
            self._second = self._new_server()
            self._second.prepare({"modules": self._others})
        return self._second

    def prove(
        self,
        edits: Overlay,
        backend: str | None = None,
        *,
        patches: Path | None = None,
    ) -> Proof:
        """Proves edits; `patches` is a patch folder with further ones."""
        return self._finish(self._start(edits, backend, patches))

    def prove_each(self, jobs: Iterable[tuple[Overlay, str | None]]) -> list[Proof]:
        """Proves edits, each with a backend, at the same time."""
        return [self._finish(each) for each in [self._start(*job) for job in jobs]]

    def screen_each(self, overlays: Iterable[Overlay]) -> list[Proof]:
        """Compiles only the first call, which refutes edits but proves none."""
        started = [self._start(each, screens=True) for each in overlays]
        return [self._finish(each) for each in started]

    def observed_calls(self, edits: Overlay) -> list[ObservedCall]:
        """What probes in the edited source record while the target runs in eager."""
        self._probes += 1
        name = f"probe-{self._probes}"
        job = ProofJob(self.job(edits, name), "", probes=True)
        child = self._followed(self._submitted(0, edits, job, name))
        return [
            ObservedCall.from_json({k: v for k, v in entry.items() if k != "kind"})
            for entry in child.entries
            if entry["kind"] == "observed_call"
        ]

    def job(self, edits: Overlay, name: str = "") -> Job:
        """The run of the target with edits, whose overlay is written to a file."""
        run = Job.of(self._target, self._options)
        if edits == Overlay():
            return run
        path = self._folder / f"overlay-{name or self.proofs}.json"
        path.write_text(json.dumps(edits.to_json()), "utf-8")
        return dataclasses.replace(run, overlay=str(path))

    def _start(
        self,
        edits: Overlay,
        backend: str | None = None,
        patches: Path | None = None,
        *,
        screens: bool = False,
    ) -> _Started:
        number = self.proofs
        run = dataclasses.replace(self.job(edits), generates_code=backend is not None)
        self.proofs += 1
        reference = str(self._folder / "reference.pt")
        folder = str(patches) if patches else None
        job = ProofJob(run, reference, backend, folder, screens=screens)
        return self._submitted(number, edits, job, f"{number}")

    def _finish(self, started: _Started) -> Proof:
        """The proof, once its process has ended; only the original must not fail."""
        child = self._followed(started)
        if started.number == 0:
            self._libraries = child.last("libraries").get("modules", {})
            self.any_backend = child.last("libraries").get("any_backend", False)
        self._memory = max(self._memory, child.last("memory").get("bytes", 0))
        try:
            with sources_of(started.edits):
                proof = self._judged(started, child)
        except UserError as error:
            if started.number == 0:
                raise
            proof = Proof(started.edits, Observation((), {}), failure=str(error))
        raised = tuple(child.last("raised_through").get("lines", ()))
        return dataclasses.replace(proof, raised=raised)

    def _judged(self, started: _Started, child: Followed) -> Proof:
        edits, run = started.edits, started.job.run
        observation = gather(child, self._target)
        if observation.error or observation.ending != "finished":
            why = observation.error or f"it ended by {observation.ending}"
            if observation.ending == "timeout" and started.number:
                return Proof(edits, observation, timed_out=True)
            raise UserError(one_line(why))
        if started.number == 0:
            self._watches_lifetimes = _asks_for_graphs(observation, self._options)
            self.any_backend &= not self._watches_lifetimes
        if started.job.backend is None and self._watches_lifetimes:
            observation = self._with_lifetimes(observation, run)
        return _proof(edits, observation, child.last("equality"))

    def _with_lifetimes(self, observation: Observation, run: Job) -> Observation:
        """Adds the tensors that outlive their memory in CUDA graphs.

        Where they cannot be watched in the original, they are never; in an edited
        target that would hide what the edit does.
        """
        audited = audit.audit_job(run, self._conditions)
        if audited.interrupted:
            raise KeyboardInterrupt
        if audited.status.status != "passed":
            if run.overlay is not None:
                raise UserError(f"CUDA graphs: {one_line(audited.status.why)}")
            self._watches_lifetimes = False
            return observation
        found = [e for e in audited.events if isinstance(e, DeadTensorEvent)]
        return dataclasses.replace(observation, events=(*observation.events, *found))

    def time_ratio(self, edits: Overlay) -> Ratio | None:
        """The original's time over that of the edited target, both compiled."""
        overlay_path = self.job(edits).overlay
        assert overlay_path is not None
        return time_ratio(self.job(Overlay()), overlay_path)

    def _followed(self, started: _Started) -> Followed:
        """What the process of a job wrote, once it has ended."""
        child = started.collected()
        if (
            child is None
            and started.ending
            and started.ending.result().code == NOT_FRESH
        ):
            self._imported |= started.edits.texts.keys()
            started = self._submitted(started.number, started.edits, started.job, "2")
            child = started.collected()
        child = child or self._fresh(started.job)
        if started.number and not started.job.screens:
            self.expected_s = time.monotonic() - started.begin
        if child.ending == "interrupted":
            raise KeyboardInterrupt
        return child

    def _fresh(self, job: ProofJob) -> Followed:
        """Runs a proof in a process that has imported nothing."""
        text = json.dumps(job.to_json())
        child = follow(self.module, text, lambda *_: None, self._conditions)
        return _with_reason(child)

    @property
    def _conditions(self) -> Conditions:
        # Each proof runs the target many times: its output would be repeated.
        return Conditions(self._hidden, timeout_s=self._options.timeout_s, quiet=True)

    def _submitted(
        self, number: int, edits: Overlay, job: ProofJob, name: str
    ) -> _Started:
        """Starts a job in a fork of a server, if that is possible."""
        # Inductor's code and patches are proved as in a process of the user.
        server = self._server_for(edits)
        is_plain = job.backend != "inductor" and not job.patches
        if server is None or not server.is_alive or not is_plain:
            return _Started(number, edits, job)
        entries = self._folder / f"entries-{name}.jsonl"
        entries.write_text("")
        limit_s = self._options.timeout_s or _NO_LIMIT_S
        message = {
            "proof": job.to_json(),
            "entries": str(entries),
            "output": str(entries.with_suffix(".txt")),
        }
        ending = server.submit(message, limit_s)
        return _Started(number, edits, job, ending, entries)


def _package(module: str) -> str:
    return module.partition(".")[0]


@dataclass(frozen=True)
class _Started:
    """A proof under way; without a fork it begins when its result is asked for."""

    number: int
    edits: Overlay
    job: ProofJob
    ending: Future[JobEnding] | None = None  # of a fork, and the file that it writes
    entries: Path = Path()
    begin: float = field(default_factory=time.monotonic)

    def collected(self) -> Followed | None:
        """What a fork wrote until it ended; None if no fork can do the job."""
        ending = self.ending.result() if self.ending else None
        if ending is None or ending.code == NOT_FRESH or (ending.code or 0) < 0:
            return None
        lines = self.entries.read_text("utf-8").splitlines()
        return _with_reason(
            Followed(
                [json.loads(line) for line in lines],
                "finished" if ending.code is not None else "timeout",
                ending.code,
                last_words=_last_line(self.entries.with_suffix(".txt")),
            )
        )


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _with_reason(child: Followed) -> Followed:
    """A child that failed before it could write why gives the last line it printed."""
    if (child.code or 0) <= 0 or child.of("unusable") or child.of("script_end"):
        return child
    why = {"kind": "unusable", "message": child.last_words or "it failed"}
    return dataclasses.replace(child, entries=[*child.entries, why])


def _last_line(output: Path) -> str:
    """The last line that a failed process printed: that of its traceback."""
    if not output.exists():
        return ""
    lines = output.read_text("utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "")


def _proof(edits: Overlay, observation: Observation, equality: Entry) -> Proof:
    matched = rules.matched(observation)
    links = explain(matched)
    located = tuple(
        Located(
            each.finding,
            each.rule.stack(each.group),
            links[each.finding.identity].causes
            if each.finding.identity in links
            else (),
            each.group.facts.entries,
        )
        for each in matched
    )
    return Proof(
        edits,
        observation,
        located=located,
        counts=counts_of(observation, [each.finding for each in located]),
        equality=Equality.from_json(equality) if equality else None,
    )


def _asks_for_graphs(observation: Observation, options: Options) -> bool:
    """Whether torch.compile is asked for CUDA graphs, in the options or the target."""
    wrappers = observation.of(WrapperEvent)
    for arguments in (options.compile, *(each.arguments for each in wrappers)):
        inner = arguments.get("options")
        if isinstance(inner, dict) and inner.get("triton.cudagraphs"):
            return True
        if arguments.get("mode") in _GRAPH_MODES:
            return True
        if arguments.get("backend") == "cudagraphs":
            return True
    return False


@contextmanager
def sources_of(edits: Overlay) -> Iterator[None]:
    """Reads edited files as the child read them."""
    overlay.show_sources(edits.texts)
    blame.forget()
    try:
        yield
    finally:
        overlay.hide_sources(edits.texts)
        blame.forget()


def reason_to_reject(
    before: Proof, after: Proof, cures: Sequence[Sequence[Finding]]
) -> str | None:
    """Why edits are not accepted; None if each cures a finding and keeps the rest."""
    if after.failure is not None:
        return f"the edited target fails: {after.failure}"
    if after.timed_out:
        return after.undecided
    assert after.equality is not None
    if after.equality.problems:
        return after.equality.problems[0]
    if before.counts.get("graphs") and not after.counts.get("graphs"):
        return "nothing is compiled any more"
    left = set(map(state, after.open))
    for findings in cures:  # of each edit: one has to be gone
        if left.issuperset(map(state, findings)):
            return f"{findings[0].code} is still there"
    if new := new_findings(before, after):
        return reason_of(new[0])
    graphs = ("graphs",) if _adds_nothing(before, after) else ()
    return rise(graphs, before, after)


def reason_of(caused: Finding) -> str:
    return f"it causes {caused.code} at line {caused.line}: {caused.message}"


def worse(before: Proof, after: Proof) -> str | None:
    """What goes wrong more often than before: no result may show that."""
    return rise((), before, after)


def rise(more: Sequence[str], before: Proof, after: Proof) -> str | None:
    """The first of the counts of what goes wrong, and of some more, that rises."""
    for name in (*WRONG, *more):
        old, new = before.counts.get(name), after.counts.get(name)
        if old is not None and new is not None and new > old:
            return f"{name.replace('_', ' ')} rise from {old} to {new}"
    return None


def state(finding: Finding) -> tuple[object, ...]:
    """A finding and its kind: a break may skip a whole frame, or split a graph.

    A recompile that settles is no longer the one that goes on.
    """
    settles = finding.kind in RECOMPILES and finding.severity == "low"
    return finding.identity, finding.kind, settles


def new_findings(before: Proof, after: Proof) -> list[Finding]:
    """Findings that the edits cause, not those that earlier findings had hidden.

    A finding was hidden if Dynamo had not traced its line before. One at a line that
    broke before is known: it may be part of another frame now, which Dynamo skips.
    """
    known = set(map(state, before.open))
    skipped = [proof.counts.get("skipped_frames") or 0 for proof in (before, after)]
    places = {(each.code, _code_of(each)) for each in before.open}
    if skipped[1] <= skipped[0]:
        known |= {state(e) for e in after.open if (e.code, _code_of(e)) in places}
    # A frame without breaks is another frame: its recompiles are counted, not compared.
    traced = _traced_code(before)
    edited = _new_lines(before.overlay, after.overlay)
    return [
        finding
        for finding in after.open
        if state(finding) not in known
        and finding.kind not in RECOMPILES
        and (_code_of(finding) in traced or _code_of(finding)[::2] in edited)
    ]


def _adds_nothing(before: Proof, after: Proof) -> bool:
    """Whether Dynamo traced the same functions: more graphs are then no progress.

    A function that Dynamo skips, after it traced a part, has no graph.
    """
    skipped = [proof.counts.get("skipped_frames") or 0 for proof in (before, after)]
    if skipped[1] < skipped[0]:
        return False

    def functions(proof: Proof) -> set[tuple[str, str]]:
        traced = proof.observation.traced or {}
        return {(file, name) for file, names in traced.items() for name in names}

    return functions(after) <= functions(before)


def _traced_code(proof: Proof) -> set[Code]:
    """The lines that Dynamo traced."""
    with sources_of(proof.overlay):
        return {
            (
                os.path.realpath(file),
                blame.plain_name(function),
                blame.source_line(file, line).strip(),
            )
            for file, functions in (proof.observation.traced or {}).items()
            for function, lines in functions.items()
            for line in lines
        }


def _code_of(finding: Finding) -> Code:
    """The line that a finding is at."""
    file = os.path.realpath(finding.file or "")
    return file, finding.function or "", (finding.source or "").strip()


def _new_lines(before: Overlay, after: Overlay) -> set[tuple[str, str]]:
    """Lines that the edits added: file and text."""
    added = set()
    for file, text in after.texts.items():
        old = before.texts.get(file) or read_source(file).text
        known = {line.strip() for line in old.splitlines()}
        added |= {
            (os.path.realpath(file), line.strip())
            for line in text.splitlines()
            if line.strip() not in known
        }
    return added


# -- timing ----------------------------------------------------------------------------

_ROUNDS = 12  # of the original and the edited target, in turns
_COMPILE_S = 600.0  # to load, compile and warm up
_ROUND_S = 60.0


def time_ratio(run: Job, overlay: str) -> Ratio | None:
    """The original's time over that of the edited target; None if one fails."""
    jobs = {"before": run, "after": dataclasses.replace(run, overlay=overlay)}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                spawn(
                    *("-m", "torchproof.fixing.timing_child"),
                    json.dumps(job.to_json()),
                    output=DEVNULL,
                )
            )
            for name, job in jobs.items()
        }
        try:
            for worker in workers.values():
                worker.receive(_COMPILE_S)
            rounds = _alternate(workers)
        except (Ended, TimeoutError):
            return None
    return stats.compare(rounds["before"], rounds["after"])


def _alternate(workers: dict[str, Child]) -> dict[str, list[list[float]]]:
    rounds: dict[str, list[list[float]]] = {name: [] for name in workers}
    for number in range(_ROUNDS):
        # Each goes first equally often.
        for name in sorted(workers, reverse=bool(number % 2)):
            reply = workers[name].ask({"do": "round"}, _ROUND_S)
            rounds[name].append(reply["times_ms"])
    return rounds
