"""Stand-ins for processes: forked from one where torch is loaded.

`torchproof` and `python` are whole commands, `forked` children of this process. They
save the seconds of `import torch` in each process. Folder, streams, exit codes and
children are as users have them. What is read while torch is imported (TORCH_LOGS,
TORCH_TRACE) has no effect, and a script finds torch imported. Each verb has a test with
real processes besides (commands.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

from commands import Done

from torchproof.process.trees import kill_tree

PATIENCE_S = 300.0
_ASIDE = 512  # descriptors from here on are not in use


def torchproof(*arguments: str, cwd: Path) -> Done:
    """As `commands.torchproof`, at the cost of what the command itself does."""
    return _forked("-m", "torchproof", *arguments, cwd=cwd)


def python(source: str, *, cwd: Path) -> Done:
    """A program as `python -c` runs it."""
    return _forked("-c", source, cwd=cwd)


@contextmanager
def forked() -> Iterator[None]:
    """Children that this process starts meanwhile are forked, if they run a module."""
    from torchproof.process import children

    before = children.subprocess  # type: ignore[attr-defined]
    children.subprocess = with_popen(_popen)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        children.subprocess = before  # type: ignore[attr-defined]


def child(arguments: list[str], path: str) -> int:
    """`torchproof.observe.child` in a process where torch is loaded."""
    from torchproof.observe import child as started
    from torchproof.targets import script

    script.when_imported = lambda name, act: act()
    started.Stream = lambda: _FileStream(path)  # type: ignore[assignment, misc]
    return started.main(arguments)


def observed_in_turn(jobs: list[str], paths: list[str]) -> None:
    """Observes several targets in one process: torch forgets each before the next."""
    import torch
    from torch._dynamo.utils import clear_compilation_metrics, counters

    dynamo = torch._dynamo.config.save_config()
    for job, path in zip(jobs, paths, strict=True):
        try:
            child([job], path)
        finally:
            torch._dynamo.config.load_config(dynamo)
            torch._dynamo.reset()
            counters.clear()
            clear_compilation_metrics()


def skip_guard_latency() -> None:
    """Compilations are over without torch's measurement of their guards.

    It flushes the processor's caches first, 45 ms each time. Only torch's debug logs
    and telemetry have its result.
    """
    from torch._dynamo import guards

    vars(guards)["profile_guard_manager"] = lambda *arguments: 0.0


class _FileStream:
    """Writes the entries to a file, and not in forked processes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._owner = os.getpid()

    def write(self, kind: str, **values: Any) -> None:
        if os.getpid() == self._owner:
            with open(self._path, "a") as file:
                file.write(json.dumps({"kind": kind, **values}, default=str) + "\n")


def _forked(*words: str, cwd: Path) -> Done:
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        paths = Path(scratch, "stdout"), Path(scratch, "stderr")
        out, err = (stack.enter_context(path.open("w")) for path in paths)
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        process = Forked([sys.executable, *words], env=os.environ, cwd=cwd, **streams)
        try:
            code = process.wait(PATIENCE_S)
        finally:
            if process.poll() is None:
                kill_tree(process.pid)
        return Done(words, code, *(path.read_text() for path in paths))


def with_popen(popen: Callable[..., Any]) -> SimpleNamespace:
    """What torchproof uses of `subprocess`, with this function as Popen."""
    names = ("PIPE", "DEVNULL", "run", "TimeoutExpired")
    others = {name: getattr(subprocess, name) for name in names}
    return SimpleNamespace(Popen=popen, **others)


def _popen(command: Sequence[str], **settings: Any) -> Any:
    return (Forked if "-m" in command else subprocess.Popen)(command, **settings)


def _fork_children() -> None:
    """What torchproof starts from here on is forked from this process."""
    from torchproof.process import children, parent_death

    def begun(begin: Callable[[], Any]) -> Any:
        # A forked process goes on in the thread that forked it: in the main one.
        return begin()

    Forked.method = "fork"
    parent_death.begun = begun
    children.subprocess = with_popen(_popen)  # type: ignore[attr-defined]


def _place(cwd: str, env: Mapping[str, str]) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    # Killed with its process; the test's own tracker would complain of what it left.
    resource_tracker._resource_tracker._fd = None  # type: ignore[attr-defined]


def end(act: Callable[[], int]) -> None:
    """Ends this process as Python does at the end of a program."""
    code: Any = 1
    try:
        code = act()
    except SystemExit as raised:
        code = raised.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


class Forked:
    """Stands in for `subprocess.Popen` of `python -m MODULE ...`."""

    method: ClassVar[str] = "forkserver"  # where torch is loaded in this process: fork
    begun: ClassVar[list[int]] = []  # process ids

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Any = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        pass_fds: Sequence[int] = (),
        **settings: Any,
    ) -> None:
        context: Any = multiprocessing.get_context(self.method)
        if self.method == "forkserver":
            context.set_forkserver_preload(["warm_torch"])
        self.stdin = None
        if stdin == subprocess.PIPE:
            stdin, write = os.pipe()
            self.stdin = os.fdopen(write, "wb")
        streams = {number: Connection(os.dup(number)) for number in pass_fds}
        for number, stream in enumerate((stdin, stdout, stderr)):
            streams[number] = Connection(descriptor(number, stream))
        if self.stdin is not None:
            os.close(stdin)
        place = str(cwd or os.getcwd())
        self._process = context.Process(
            target=_run_child, args=(list(command), place, dict(env), streams)
        )
        self._process.start()
        for connection in streams.values():
            connection.close()
        self._asking = threading.Lock()  # its exit code can be read once
        self.pid: int = self._process.pid
        self.begun.append(self.pid)

    def poll(self) -> int | None:
        with self._asking:
            code: int | None = self._process.exitcode
            return code

    def wait(self, timeout: float | None = None) -> int:
        with self._asking:
            self._process.join(timeout)
            code: int | None = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("child", timeout or 0.0)
        return code


def _run_child(
    command: list[str], cwd: str, env: dict[str, str], streams: dict[int, Connection]
) -> None:
    os.chdir(cwd)
    connect({number: each.fileno() for number, each in streams.items()})
    end(lambda: become(command, env))


def descriptor(number: int, stream: Any) -> int:
    """A copy of what `Popen` accepts as one of the three streams; None inherits it."""
    if stream == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR)
    if stream is None:
        return os.dup(number)
    return os.dup(stream if isinstance(stream, int) else stream.fileno())


def connect(descriptors: Mapping[int, int]) -> None:
    """Gives each its number; all else is closed, as a pipe ends when nobody has it
    open."""
    copies = {
        number: fcntl.fcntl(each, fcntl.F_DUPFD, _ASIDE)
        for number, each in descriptors.items()
    }
    for number, copy in copies.items():
        os.dup2(copy, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in descriptors:
            with contextlib.suppress(OSError):
                os.close(number)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)


def become(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Runs what follows `-m` or `-c` in a command."""
    os.setsid()
    _place(os.getcwd(), env)
    if command[1] == "-c":
        _fork_children()
        return _program(command[2])
    arguments = list(command[command.index("-m") + 1 :])
    if arguments[0] == "torchproof":
        from torchproof.cli import verbs

        _fork_children()
        return verbs.main(arguments[1:])
    from torchproof.targets import script

    # Torch is imported already.
    script.when_imported = lambda name, act: act()
    if arguments[0] == "torchproof.process.aslr":
        del arguments[:2]
    module = importlib.import_module(arguments[0])
    if not hasattr(module, "main"):
        module = importlib.import_module(f"{arguments[0]}.__main__")
    return int(module.main(arguments[1:]))


def _program(source: str) -> int:
    sys.path.insert(0, os.getcwd())
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(source, "<string>", "exec"), main.__dict__)
    return 0
