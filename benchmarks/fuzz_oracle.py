"""How a damaged file may be answered: what a case calls, and what is wrong of it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fuzz_mutations import Chance

LIMIT_S = 60.0  # a first case also imports torch
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


class Wrong(Exception):
    """What is not as it should be, in words."""


@dataclass(frozen=True)
class Finding:
    format: str
    case: int
    what: str


@dataclass
class Tally:
    """What came of the cases of one format."""

    cases: int = 0
    files: int = 0
    calls: int = 0
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)


class Case:
    """One case: a folder of its own to write in, and how what is read is called."""

    def __init__(self, folder: Path, chance: Chance, tally: Tally) -> None:
        self.folder, self.chance, self.tally = folder, chance, tally

    def write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.tally.files += 1
        return path

    def pick(self, commands: Sequence[Sequence[str]], count: int) -> None:
        for command in self.chance.sample(commands, min(count, len(commands))):
            self.command(*command)

    def command(self, *arguments: str, writes: Sequence[str] = ()) -> str:
        """The stdout of a command; `writes` names files that it may change."""
        self.tally.calls += 1
        before = snapshot(self.folder)
        code, out, err = ran(arguments)
        after = snapshot(self.folder)
        told = f"torchproof {' '.join(arguments)}"
        judge(told, arguments, code, out=out, err=err)
        for name, digest in before.items():
            if after.get(name) != digest and name not in writes:
                raise Wrong(f"{told}: {name} was changed")
        if code == 2:
            self.tally.refused += 1
        else:
            self.tally.accepted += 1
        return out

    def function(
        self,
        told: str,
        call: Callable[[], Any],
        documented: tuple[type[Exception], ...],
    ) -> Any:
        """A function of the package, with the errors that it may raise."""
        self.tally.calls += 1
        try:
            given = call()
        except documented as error:
            self.tally.refused += 1
            if "\n" in str(error) or UNSEEN.search(str(error)):
                raise Wrong(f"{told}: no plain line: {str(error)!r:.200}") from None
            return None
        self.tally.accepted += 1
        return given


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
    told: str, arguments: Sequence[str], code: int, *, out: str, err: str
) -> None:
    if "Traceback (most recent call last)" in err:
        raise Wrong(f"{told}: {err.strip().splitlines()[-1]}")
    if code not in (0, 1, 2):
        raise Wrong(f"{told}: exit code {code}")
    if code == 2 and (err.count("\n") != 1 or not err.startswith("torchproof")):
        raise Wrong(f"{told}: exit code 2 and not one line: {err!r:.300}")
    page = "html" in arguments
    for name, text in (("stdout", out), ("stderr", err)):
        found = UNSEEN.search(text.replace("\x1e", "") if page else text)
        if found:
            near = text[max(0, found.start() - 30) : found.end() + 30]
            raise Wrong(f"{told}: control character on {name}: {near!r}")
    if out and ("json" in arguments or "sarif" in arguments):
        try:
            json.loads(out, parse_constant=_refuse)
        except ValueError as error:
            raise Wrong(f"{told}: no JSON: {error}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def snapshot(folder: Path) -> dict[str, str]:
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(folder))] = digest
    return found


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Wrong(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
