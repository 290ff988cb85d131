"""What no case may do: reach out of its folder, start a process, or run its data.

An audit hook sees what Python opens, changes, starts and imports, and stops what is
forbidden. `Surroundings` looks at the files around the folder of a case instead, which
also shows what native code did.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.fuzz_mutations import MARKER

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
