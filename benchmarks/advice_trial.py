"""One trial of an advice: it is applied to a copy of a program, literally.

    with Trials(program, folder, server) as trials:
        for finding in trials.loud:
            print(trials.tried(finding))

A setting is a line at the end of the copy, which runs before anything is compiled. A
mark is set on the arguments of the calls, which the copy's factory makes. The copy is
checked like the program, and its compiled outputs are compared with those of the
program in eager mode.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.advice_verdict import (
    COUNTED,
    Checked,
    Difference,
    Lines,
    Trial,
    Verdict,
)
from benchmarks.survey import Row, environment, portable
from torchproof import fixing
from torchproof.checking import checker
from torchproof.checking.measured_parts import MeasuredParts
from torchproof.checking.observed_parts import ObservedParts, PartProgress
from torchproof.fixing.edits import Misfit, applied, unified
from torchproof.fixing.proof import sources_of
from torchproof.observe import audit, gather
from torchproof.process import DEVNULL, Followed, ForkServer, spawn
from torchproof.records import (
    Finding,
    Keywords,
    Observation,
    Overlay,
    Remedy,
    Replacement,
    UserError,
)
from torchproof.targets import Job, Options, parse

_START = "from benchmarks import advice_server; advice_server.main()"
_MARKS = """

_make = make


def make():
    import inspect

    import torch

    fn, calls = _make()
    marked = set()
    for call in calls:
        bound = inspect.signature(getattr(fn, "forward", fn)).bind
        names = call if isinstance(call, dict) else dict(bound(*call).arguments)
        for argument, line in {marks!r}:
            try:
                value = eval(argument, {{}}, names)
            except (LookupError, AttributeError, NameError, TypeError):
                continue  # this call has no such argument
            if isinstance(value, torch.Tensor):
                exec(line, {{"torch": torch}}, names)
                marked.add(line)
    assert len(marked) == {count}, "no call has an argument to mark"
    return fn, calls
"""


@dataclass(frozen=True)
class Copy:
    """A program with a remedy: its text, arguments of torch.compile, and libraries."""

    text: str
    compile: Keywords = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)


def with_remedy(text: str, file: str, remedy: Remedy) -> Copy:
    """Raises `Misfit` if the program has not the lines that the remedy replaces.

    A replacement inserts the line of a setting or a mark, where there is a place.
    """
    by_file: dict[str, list[Replacement]] = {}
    for change in remedy.replacements:
        by_file.setdefault(os.path.realpath(change.file), []).append(change)
    own = by_file.pop(os.path.realpath(file), [])
    libraries = {
        name: applied(Path(name).read_text("utf-8"), changes)
        for name, changes in by_file.items()
    }
    text = applied(text, own)
    if remedy.replacements:
        return Copy(text, libraries=libraries)
    lines = [s.code for s in remedy.settings if not s.name.startswith("compile.")]
    arguments: Keywords = {
        s.name.removeprefix("compile."): s.value
        for s in remedy.settings
        if s.name.startswith("compile.")
    }
    marks = [(mark.argument, mark.code) for mark in remedy.marks]
    if lines:
        text += "\n".join(["", "import torch", *lines, ""])
    if marks:
        text += _MARKS.format(marks=marks, count=len({line for _, line in marks}))
    return Copy(text, arguments)


# -- running ---------------------------------------------------------------------------


class Server:
    """Runs programs in forks of a process that has imported torch."""

    def __init__(self, modules: Iterable[str], folder: Path, limit_s: float) -> None:
        words = ("-c", _START, *modules)
        child = spawn(*words, environment=environment(str(folder)), output=DEVNULL)
        self._server = ForkServer(child)
        self._limit_s, self._lock = limit_s, threading.Lock()
        self._judging = threading.Lock()  # what is known of a source is kept globally

    def close(self) -> None:
        self._server.close()

    def check(self, file: Path, options: Options) -> Checked:
        """What `check --effort quick` says; raises `UserError` as it does."""
        scope = checker.Scope("quick", (), (), ())
        request = checker.parse(f"{file}:make", options, scope)
        child = self._run(Job.of(request.target, options), file.with_suffix(".jsonl"))
        with self._judging, sources_of(_overlay(options)):
            observation = gather(child, request.target)
            observed = ObservedParts(observation, MeasuredParts(), audit.skipped(""))
            parts = PartProgress(
                request.in_order, None, lambda text: None, show=lambda state: None
            )
            judged = checker.judge(request, observed, parts)
            run = checker.explain(request, observed, judged, before=None)
            run = checker.with_drafts(run, judged, fixing.drafted)
        if run.error is None and run.ending != "finished":
            run = replace(run, error=f"ended by {run.ending}")
        return Checked(run, _traced(observation))

    def record(self, file: Path, options: Options, *, compiled: bool) -> Path:
        """A file with what the calls return."""
        answer = file.with_suffix(".compiled" if compiled else ".eager")
        job = Job.of(parse(f"{file}:make"), options)
        self._run(job, answer, records=True, compiled=compiled)
        if not answer.stat().st_size:
            raise UserError(_last_line(answer))
        return answer

    def difference(
        self, file: Path, options: Options, reference: Path, *, compiled: bool
    ) -> Difference | None:
        """How what the calls return differs from a record; None if it does not."""
        answer = file.with_suffix(".difference")
        job = Job.of(parse(f"{file}:make"), options)
        known = str(reference)
        self._run(job, answer, records=True, compiled=compiled, reference=known)
        if not answer.stat().st_size:
            raise UserError(_last_line(answer))
        found = json.loads(answer.read_text("utf-8"))
        return Difference(**found) if found else None

    def _run(
        self,
        job: Job,
        answer: Path,
        *,
        records: bool = False,
        compiled: bool = False,
        reference: str | None = None,
    ) -> Followed:
        answer.write_bytes(b"")
        message = {
            "job": job.to_json(),
            "entries": str(answer),
            "output": str(_output(answer)),
            "records": records,
            "compiled": compiled,
            "reference": reference,
        }
        with self._lock:
            future = self._server.submit(message, self._limit_s)
        ending = future.result()
        how = "finished" if ending.code is not None else "timeout"
        if records:
            return Followed([], how, ending.code)
        entries = [json.loads(line) for line in answer.read_text("utf-8").splitlines()]
        return Followed(entries, how, ending.code, last_words=_last_line(answer))


def _output(answer: Path) -> Path:
    return answer.with_name(f"{answer.name}.txt")


def _last_line(answer: Path) -> str:
    """The last line that a process printed: that of its traceback if it failed."""
    output = _output(answer)
    text = output.read_text("utf-8", "replace") if output.exists() else ""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it ended without an answer"


def _overlay(options: Options) -> Overlay:
    if options.overlay is None:
        return Overlay()
    return Overlay.from_json(json.loads(Path(options.overlay).read_text("utf-8")))


def _traced(observation: Observation) -> frozenset[tuple[str, int]]:
    return frozenset(
        (os.path.basename(file), line)
        for file, functions in (observation.traced or {}).items()
        for lines in functions.values()
        for line in lines
    )


# -- the trials of a program -----------------------------------------------------------


class Trials:
    """Checks a program, and tries the remedies of its findings one by one."""

    def __init__(
        self,
        name: str,
        text: str,
        folder: Path,
        server: Server,
        *,
        patched: Callable[[], Server] | None = None,  # for patches of libraries
    ) -> None:
        self._name, self._text, self._folder = name, text, folder
        self._server, self._count = server, 0
        self._patched = patched or (lambda: server)
        self._known: dict[object, tuple[Copy, Checked | str, Difference | None]] = {}
        self.file = self._written("program", text)
        self.before = server.check(self.file, Options())
        self._record: Path | None = None
        self._compiled_differs = False

    def _written(self, folder: str, text: str) -> Path:
        file = self._folder / folder / f"{self._name}.py"
        file.parent.mkdir()
        file.write_text(text, "utf-8")
        return file

    def row(self, finding: Finding) -> Row:
        """A finding, its remedy, and what the remedy did."""
        remedy = finding.remedy or Remedy("none", why=finding.fix)
        whole = self._with_data(remedy)
        found, why, uncovered, after = self._tried(finding, whole)
        counts = self.before.run.counts
        return {
            "code": finding.code,
            "kind": finding.kind,
            "severity": finding.severity,
            "owner": finding.owner,
            "function": finding.function,
            "line": finding.line,
            "source": (finding.source or "").strip(),
            "message": self._brief(finding.message),
            "remedy": remedy.kind,
            "tier": remedy.tier,
            "text": self._brief(remedy.text),
            "diff": self._diff(whole),
            "verdict": str(found),
            "why": self._brief(why)[:300],
            "uncovered": uncovered,
            "counts": {
                name: [counts.get(name), after.run.counts.get(name) if after else None]
                for name in COUNTED
            },
        }

    def _with_data(self, remedy: Remedy) -> Remedy:
        """The remedy of an effect, with the data that its causes have."""
        if not remedy.of:
            return remedy
        known = {f.identity: f.remedy for f in self.before.run.findings}
        parts = [part for each in remedy.of if (part := known[each]) is not None]
        return replace(
            remedy,
            replacements=tuple(r for part in parts for r in part.replacements),
            settings=tuple(s for part in parts for s in part.settings),
            marks=tuple(m for part in parts for m in part.marks),
        )

    def _brief(self, text: str) -> str:
        return portable(text.replace(f"{self._folder}{os.sep}", ""))

    def _diff(self, remedy: Remedy) -> str:
        """The lines that replacements change in the program."""
        try:
            copy = with_remedy(self._text, str(self.file), remedy)
        except (Misfit, OSError):
            return ""
        if not remedy.replacements:
            return ""
        before, after = {self._name: self._text}, {self._name: copy.text}
        for file, text in copy.libraries.items():
            before[portable(file)] = Path(file).read_text("utf-8")
            after[portable(file)] = text
        return unified(after, before)

    def _tried(
        self, finding: Finding, remedy: Remedy
    ) -> tuple[Verdict, str, list[str], Checked | None]:
        if remedy.kind == "none":
            return Verdict.NONE, "", [], None
        if remedy.kind == "upgrade":
            return Verdict.UPGRADE, "", [], None
        try:
            copy, after, difference = self._applied(remedy)
        except (Misfit, OSError) as error:
            return Verdict.FAILS, f"not applicable: {error}", [], None
        if isinstance(after, str):
            return Verdict.FAILS, after, [], None
        lines = Lines(self._text, copy.text)
        trial = Trial(self.before, after, lines, difference)
        return *trial.verdict(finding), after

    def _applied(self, remedy: Remedy) -> tuple[Copy, Checked | str, Difference | None]:
        """The copy, what a check says of it or why it fails, and other outputs."""
        key = remedy.replacements, remedy.settings, remedy.marks
        if key not in self._known:
            copy = with_remedy(self._text, str(self.file), remedy)
            try:
                after, difference = self._checked(copy)
            except UserError as error:
                self._known[key] = copy, str(error), None
            else:
                self._known[key] = copy, after, difference
        return self._known[key]

    def _checked(self, copy: Copy) -> tuple[Checked, Difference | None]:
        self._count += 1
        file = self._written(f"copy-{self._count}", copy.text)
        options = Options(compile=copy.compile, overlay=self._libraries(copy))
        server = self._patched() if copy.libraries else self._server
        after = server.check(file, options)
        if after.run.error:
            return after, None
        record = self._reference()
        compiled = not self._compiled_differs
        return after, server.difference(file, options, record, compiled=compiled)

    def _libraries(self, copy: Copy) -> str | None:
        if not copy.libraries:
            return None
        path = self._folder / f"overlay-{self._count}.json"
        path.write_text(json.dumps(Overlay(texts=copy.libraries).to_json()), "utf-8")
        return str(path)

    def _reference(self) -> Path:
        """What the program returns in eager mode.

        Where torch.compile itself changes that, such as numbers of NumPy's generator,
        copies are compared in eager mode.
        """
        if self._record is None:
            server, file = self._server, self.file
            self._record = server.record(file, Options(), compiled=False)
            found = server.difference(file, Options(), self._record, compiled=True)
            self._compiled_differs = found is not None
        return self._record
