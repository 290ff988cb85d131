"""Runs cases of damaged files in a fork, under limits, and says what is wrong of them.

A number and a seed make a case again. A finding is: an exception that is not a
documented one, an exit code other than 0, 1 and 2, a refusal of another
form than one line on stderr, a control character in the output, JSON that is none,
anything changed, read or printed outside of the folder of the case, code of the data
that ran, a process that was started, or more time or memory than `Limits` allow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import io
import json
import logging
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fuzz_mutations import MARKER, Chance

MOST_FINDINGS = 20
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
SECRET = "a7c1-secret-of-the-neighbour"
# A module that shows that it was imported or run; one lies in every folder of a case.
EVIL = f"import os\nos.mkdir({MARKER!r})\nmake = lambda: None\n"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_STARTS = {
    *("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty"),
    *("os.posix_spawn", "os.spawn", "pty.spawn", "socket.connect", "socket.sendto"),
    *("urllib.Request", "webbrowser.open"),
}
# Events with the positions of the paths that they change.
_CHANGES = {
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate"), (0,)),
    **dict.fromkeys(("os.chmod", "os.chown", "os.utime", "os.setxattr"), (0,)),
    **dict.fromkeys(("os.rename", "os.link"), (0, 1)),
    "os.symlink": (1,),
    "os.removexattr": (0,),
}
_NO_FILES = (os.devnull, "/dev/tty", "/dev/shm")


@dataclass(frozen=True)
class Limits:
    """What a case may use; memory is counted from the start of its process."""

    cpu_s: float = 20.0
    seconds: float = 60.0
    memory: int = 1 << 30
    file: int = 256 << 20


@dataclass
class Tally:
    """What came of the cases of one format; `files` are those that were mutated."""

    cases: int = 0
    files: int = 0
    calls: int = 0
    accepted: int = 0
    refused: int = 0


class Wrong(Exception):
    """What is not as it should be, in words."""


class Forbidden(BaseException):
    """A case did what no file may make it do. No `except Exception` hides it."""


class Guard:
    """The audit hook of a process. It cannot be removed, so it is for a fork."""

    def __init__(self, may_read: str | None = None) -> None:
        self._may_read = may_read
        self._folder: str | None = None
        self._allowed: tuple[str, ...] = ()
        self._hidden = ""
        self.forbidden: list[str] = []
        sys.addaudithook(self._audit)

    def watch(self, folder: Path, *, allowed: tuple[Path, ...], hidden: Path) -> None:
        """Begins to watch; the case may write into its folder and what is `allowed`.

        It may not even read what is below `hidden`, except for `may_read`.
        """
        self.forbidden = []
        self._allowed = tuple(f"{path}{os.sep}" for path in (folder, *allowed))
        self._hidden = f"{hidden}{os.sep}"
        self._folder = f"{folder}{os.sep}"

    def rest(self) -> None:
        self._folder = None

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._folder is None:
            return
        if event == "open":
            self._opened(arguments)
        elif event in _CHANGES:
            for at in _CHANGES[event]:
                self._assert_inside(event, arguments[at])
        elif event in _STARTS:
            self._refuse(f"{event} {arguments[:2]!r:.200}")
        elif event == "exec":
            self._executed(arguments[0])
        elif event == "pickle.find_class":
            self._refuse(f"unpickles {'.'.join(map(str, arguments))}")

    def _opened(self, arguments: tuple[Any, ...]) -> None:
        path, mode, flags = arguments
        if not isinstance(path, str | bytes):
            return  # a descriptor, which an earlier event was about
        writes = isinstance(mode, str) and not set("wax+").isdisjoint(mode)
        if writes or (isinstance(flags, int) and flags & _WRITES):
            self._assert_inside("open for writing", path)
        elif self._real(path).startswith(self._hidden) and not (
            self._may_read and os.fsdecode(path).endswith(self._may_read)
        ):
            self._refuse(f"reads {os.fsdecode(path)!r:.200}")

    def _executed(self, code: Any) -> None:
        name = getattr(code, "co_filename", "<unknown>")
        assert self._folder is not None
        if name[:1] != "<" and os.path.abspath(name).startswith(self._folder):
            self._refuse(f"runs the code of {name!r:.200}")

    def _assert_inside(self, event: str, path: Any) -> None:
        if isinstance(path, int):
            return
        real = self._real(path)
        if not f"{real}{os.sep}".startswith((*self._allowed, *_NO_FILES)):
            self._refuse(f"{event}: {os.fsdecode(path)!r:.200}, outside of its folder")

    def _real(self, path: Any) -> str:
        """The path with its folder resolved; the last part may be a link itself."""
        folder, self._folder = self._folder, None  # what follows is not of the case
        try:
            head, tail = os.path.split(os.path.abspath(os.fsdecode(path)))
            return os.path.join(os.path.realpath(head), tail)
        finally:
            self._folder = folder

    def _refuse(self, what: str) -> None:
        self.forbidden.append(f"{what}, at {_place()}")
        raise Forbidden(what)


def _place() -> str:
    """The innermost line of the package on the stack."""
    frame: Any = sys._getframe()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if "torchproof" in path.parts:
            return f"{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return "no line of torchproof"


class Surroundings:
    """The folder of a case, in folders with files that are none of its business."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.cases = self.root / "around" / "cases"
        self.home, self.temporary = self.root / "home", self.root / "tmp"
        self.neighbour = self.root / "around" / "neighbour"
        for folder in (self.cases, self.home, self.temporary, self.neighbour):
            folder.mkdir(parents=True, exist_ok=True)
        (self.neighbour / "secret.py").write_text("def f(x):\n    return x.item()\n")
        (self.neighbour / "secret.json").write_text(f'{{"secret": "{SECRET}"}}\n')
        self._before = dict(self._listed())

    def _listed(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        watched = (self.root, self.root / "around", self.neighbour, self.home)
        for folder in (*watched, self.temporary, self.cases):
            with os.scandir(folder) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    is_file = not entry.is_dir(follow_symlinks=False)
                    facts = (status.st_size, status.st_mtime_ns, status.st_mode)
                    yield entry.path, facts if is_file else (status.st_mode,)

    def changes(self) -> list[str]:
        """What a case left outside of its folder, which has been removed by now."""
        after = dict(self._listed())
        if after == self._before:
            return []
        differing = {*after.items()} ^ {*self._before.items()}
        self._before = after  # once is enough
        return sorted({os.path.relpath(path, self.root) for path, _ in differing})


# -- what a case may call --------------------------------------------------------------


class Case:
    """One case: a folder of its own to write in, and how what is read is called."""

    def __init__(self, folder: Path, chance: Chance, tally: Tally) -> None:
        self.folder, self.chance, self.tally = folder, chance, tally
        self.called = ""  # the last command or function
        self.printed = ""
        self._written: dict[str, bytes] = {}

    def write(self, name: str, content: bytes) -> Path:
        """A file that is as it should be."""
        path = self.folder / name
        try:
            path.write_bytes(content)
        except FileNotFoundError:
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
        self._written[str(path)] = content
        return path

    def damaged(self, name: str, content: bytes) -> Path:
        """A file that was mutated."""
        self.tally.files += 1
        return self.write(name, content)

    def sometimes(self, probability: float) -> bool:
        return self.chance.random() < probability

    def pick(self, commands: Sequence[Sequence[str]]) -> str:
        return self.command(*self.chance.choice(commands))

    def command(self, *arguments: str, writes: Path | None = None) -> str:
        """The stdout of a command; `writes` is a file that it may change."""
        self.tally.calls += 1
        self.called = f"torchproof {' '.join(arguments)}"
        code, out, err = ran(arguments)
        self.printed += out + err
        judge(self.called, arguments, code, out=out, err=err)
        for path, content in self._written.items():
            if path != str(writes) and Path(path).read_bytes() != content:
                raise Wrong(f"{self.called}: {path} was changed")
        if code == 2:
            self.tally.refused += 1
        else:
            self.tally.accepted += 1
        return out

    def function(
        self,
        label: str,
        call: Callable[[], Any],
        documented: tuple[type[Exception], ...],
    ) -> Any:
        """A function of the package, with the errors that it may raise."""
        self.tally.calls += 1
        self.called = label
        try:
            result = call()
        except documented as error:
            self.tally.refused += 1
            self.printed += str(error)
            if "\n" in str(error) or UNSEEN.search(str(error)):
                raise Wrong(f"{label}: no plain line: {str(error)!r:.200}") from None
            return None
        self.tally.accepted += 1
        return result


def ran(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line."""
    from torchproof.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in "oe")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(list(arguments))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return code, texts[0], texts[1]


def judge(
    label: str, arguments: Sequence[str], code: int, *, out: str, err: str
) -> None:
    if "Traceback (most recent call last)" in err:
        places = re.findall(r'File "[^"]*/([^/"]+)", line (\d+), in (\S+)', err)
        where = " at {}:{} {}".format(*places[-1]) if places else ""
        raise Wrong(f"{label}: {err.strip().splitlines()[-1]}{where}")
    if code not in (0, 1, 2):
        raise Wrong(f"{label}: exit code {code}")
    if code == 2 and (err.count("\n") != 1 or not err.startswith("torchproof")):
        raise Wrong(f"{label}: exit code 2 and not one line: {err!r:.300}")
    page = "html" in arguments
    for name, text in (("stdout", out), ("stderr", err)):
        found = UNSEEN.search(text.replace("\x1e", "") if page else text)
        if found:
            near = text[max(0, found.start() - 30) : found.end() + 30]
            raise Wrong(f"{label}: control character on {name}: {near!r}")
    if out and ("json" in arguments or "sarif" in arguments):
        try:
            json.loads(out, parse_constant=_refuse)
        except ValueError as error:
            raise Wrong(f"{label}: no JSON: {error}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


# -- running ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """The cases of one format; `may_read`: the ending of files it may read anywhere."""

    body: Callable[[Case], None]
    cases: int
    seed: int = 0
    first: int = 0  # the number of the first case
    limits: Limits = Limits()
    may_read: str | None = None


def run(job: Job) -> dict[str, Any]:
    """The tally of a fork that runs the cases, and the findings."""
    with tempfile.TemporaryDirectory(prefix="torchproof-fuzz-") as name:
        folder = Path(name)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _be_worker(job, folder)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what a case has started
        if (folder / "found.json").exists():
            found: dict[str, Any] = json.loads((folder / "found.json").read_text())
            return found
        stack = (folder / "stderr.txt").read_text(errors="replace")
    case = re.findall(r"^case \d+", stack, re.M)[-1:]
    ended = signal.Signals(-code) if code < 0 else None
    what = _ENDS.get(ended, ended.name) if ended else "no end in time"
    frames = re.findall(r'File "([^"]+)", line (\d+),? in (\S+)', stack)
    places = [f"{Path(f).name}:{n} {name}" for f, n, name in frames[:4]]
    where = " < ".join(places) or stack[-300:]
    finding = f"{''.join(case)}: the process ended: {what}, at {where}"
    return dataclasses.asdict(Tally()) | {"findings": [finding]}


_ENDS = {signal.SIGPROF: "too much CPU time", signal.SIGXFSZ: "too large a file"}


def _be_worker(job: Job, folder: Path) -> None:
    status = 1
    try:
        _confine(job.limits, folder)
        found = _Worker(job, folder).run()
        (folder / "found.json").write_text(json.dumps(found))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _confine(limits: Limits, folder: Path) -> None:
    os.setsid()
    output = os.open(folder / "stderr.txt", os.O_WRONLY | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, number)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    faulthandler.enable(2)
    for number in _ENDS:  # Python ignores the second one
        signal.signal(number, signal.SIG_DFL)
        faulthandler.register(number, 2, chain=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file, limits.file))
    used = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert used is not None
    most = (int(used[1]) << 10) + limits.memory
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.dont_write_bytecode = True
    logging.getLogger("torchproof").setLevel(logging.CRITICAL)


class _Worker:
    """Does cases one after the other, each in a folder of its own."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._job, self._tally = job, Tally()
        self._around = Surroundings(folder / "world")
        self._guard = Guard(may_read=job.may_read)
        os.environ["HOME"] = str(self._around.home)
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._around.temporary)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self._around.home / "torch")

    def run(self) -> dict[str, Any]:
        findings: list[str] = []
        for number in range(self._job.first, self._job.first + self._job.cases):
            try:
                self._one(random.Random(f"{self._job.seed} {number}"))
            except Wrong as error:
                findings.append(f"case {number}: {str(error)[:500]}")
            if len(findings) == MOST_FINDINGS:
                break
        return dataclasses.asdict(self._tally) | {"findings": findings}

    def _one(self, chance: random.Random) -> None:
        limits, around = self._job.limits, self._around
        faulthandler.dump_traceback_later(limits.seconds, exit=True)
        signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
        folder = around.cases / "case"
        folder.mkdir()
        os.chdir(folder)
        (folder / "evil.py").write_text(EVIL)
        case = Case(folder, chance, self._tally)
        print(
            f"case {self._job.first + self._tally.cases}", file=sys.stderr, flush=True
        )
        wrong = self._watched(case)
        os.chdir(around.cases)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(around.home / "torch", ignore_errors=True)
        wrong += [f"{case.called}: changed {name}" for name in around.changes()]
        self._tally.cases += 1
        if wrong:
            raise Wrong("; ".join(dict.fromkeys(wrong)))

    def _watched(self, case: Case) -> list[str]:
        """What is wrong of a case while the guard watches it."""
        around, wrong = self._around, []
        allowed = (around.temporary, around.home / "torch")
        self._guard.watch(case.folder, allowed=allowed, hidden=around.neighbour)
        try:
            self._job.body(case)
        except Wrong as error:
            wrong.append(str(error))
        except Forbidden:
            pass  # the guard keeps what it forbade, also if a case hides it
        except Exception as error:
            wrong.append(_words(error))
        finally:
            self._guard.rest()
        wrong += self._guard.forbidden
        if MARKER in os.listdir(case.folder):
            wrong.append(f"{case.called}: the data was run as code")
        if SECRET in case.printed:
            wrong.append(f"{case.called}: prints a file outside of its folder")
        return wrong


def _words(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "torchproof" in frame.filename] or frames
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
    return f"{type(error).__name__}: {error!s:.200} at {where}"
