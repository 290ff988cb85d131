"""How a damaged file may be answered: what a case calls, and what is wrong of it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fuzz_mutations import Chance

MOST_TOLD = 50  # findings of a format that are kept with their text
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
    """What came of the cases of one format; `files` are those that were mutated."""

    cases: int = 0
    files: int = 0
    calls: int = 0
    accepted: int = 0
    refused: int = 0
    cpu_s: float = 0.0
    peak_mib: int = 0
    findings: int = 0
    examples: list[Finding] = field(default_factory=list)

    def add(self, other: Tally, usage: resource.struct_rusage | None = None) -> None:
        for name in ("cases", "files", "calls", "accepted", "refused", "findings"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.cpu_s += other.cpu_s
        self.peak_mib = max(self.peak_mib, other.peak_mib)
        self.examples = [*self.examples, *other.examples][:MOST_TOLD]
        if usage is not None:
            self.cpu_s += usage.ru_utime + usage.ru_stime
            self.peak_mib = max(self.peak_mib, usage.ru_maxrss >> 10)

    def tell(self, finding: Finding) -> None:
        self.findings += 1
        self.examples = [*self.examples, finding][:MOST_TOLD]


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
        told: str,
        call: Callable[[], Any],
        documented: tuple[type[Exception], ...],
    ) -> Any:
        """A function of the package, with the errors that it may raise."""
        self.tally.calls += 1
        self.called = told
        try:
            result = call()
        except documented as error:
            self.tally.refused += 1
            self.printed += str(error)
            if "\n" in str(error) or UNSEEN.search(str(error)):
                raise Wrong(f"{told}: no plain line: {str(error)!r:.200}") from None
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
    told: str, arguments: Sequence[str], code: int, *, out: str, err: str
) -> None:
    if "Traceback (most recent call last)" in err:
        places = re.findall(r'File "[^"]*/([^/"]+)", line (\d+), in (\S+)', err)
        where = " at {}:{} {}".format(*places[-1]) if places else ""
        raise Wrong(f"{told}: {err.strip().splitlines()[-1]}{where}")
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
