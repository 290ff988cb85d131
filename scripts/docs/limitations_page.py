"""The parts of docs/reference/limitations.md: every program, and its outcome by torch.

In come the programs of tests/limitations, and the outcomes that
`benchmarks/limitations.py --write` kept for each version of torch.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.limitations import (
    FAILED,
    GONE,
    HOLDS,
    MENDED,
    RESULTS,
    STUCK,
    Program,
    programs,
    version,
)
from torchproof.report import markdown, numbers

GROUPS = {
    "nothing": "Nothing is compiled, without a warning",
    "lazy": "Compiling happens later than it seems",
    "breaks": "Graph breaks",
    "recompiles": "Repeated recompilation",
    "shapes": "Sizes",
    "stale": "Changes that compiled code ignores",
    "wrong": "Other results than eager",
    "fails": "Errors that eager does not raise",
    "modules": "Modules and checkpoints",
    "speed": "Speed",
    "graphs": "CUDA graphs",
    "diagnosis": "Wrong answers of torch's own tools",
}
SHOWN = {HOLDS: "yes", GONE: "no", STUCK: "yes, no workaround", FAILED: "-"}
# Of a program that asserts that all is well.
SHOWN_MENDED = {HOLDS: "fine", GONE: "wrong", FAILED: "-"}


@dataclass(frozen=True)
class Kept:
    """The outcomes under one torch on one machine."""

    torch: str
    python: str
    arch: str
    gpu: str | None
    programs: dict[str, dict[str, object]]

    @property
    def version(self) -> str:
        return version(self.torch)


def kept() -> list[Kept]:
    """The oldest torch first."""
    read = [
        Kept(**json.loads(path.read_text(encoding="utf-8")))
        for path in RESULTS.glob("limitations-*.json")
    ]
    return sorted(read, key=lambda one: [int(n) for n in one.version.split(".")])


def outcomes(program: Program) -> dict[str, str]:
    """By version of torch; a version it was not run under is left out."""
    on_gpu = program.needs == "cuda"
    return {
        one.version: str(one.programs[program.name]["outcome"])
        for one in kept()
        if (one.gpu is not None) is on_gpu and program.name in one.programs
    }


def conditions() -> str:
    """Where all of it was run."""
    rows = (
        (one.torch, one.python, one.gpu or f"CPU, {one.arch}", str(len(one.programs)))
        for one in kept()
    )
    return markdown.table(["torch", "Python", "on", "programs"], rows)


def overview() -> str:
    """One row a program, and whether it goes wrong under each torch."""
    listed = [one for group in GROUPS for one in _of(group)]
    return _table(listed, "problem", SHOWN, codes=True)


def mended_overview() -> str:
    return _table(_of(MENDED), "fixed in torch", SHOWN_MENDED, codes=False)


def _table(
    listed: list[Program], what: str, words: dict[str, str], *, codes: bool
) -> str:
    columns = list(dict.fromkeys(one.version for one in kept()))
    header = [what, *columns, *["torchproof reports"] * codes]

    def rows() -> Iterator[tuple[str, ...]]:
        for program in listed:
            found = outcomes(program)
            cells = [words[found[v]] if v in found else "-" for v in columns]
            title = f"[{program.title}](#{_anchor(program.title)})"
            yield title, *cells, *[_code(program)] * codes

    return markdown.table(header, rows())


def _of(group: str) -> list[Program]:
    return [program for program in programs() if program.group == group]


def _code(program: Program) -> str:
    if program.code is None:
        return numbers.UNKNOWN
    return f"[{program.code}](rules.md#{program.code.lower()})"


def _anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def entries() -> str:
    """Every group with its programs."""
    return "\n".join(
        f"## {title}\n\n" + "\n".join(map(_entry, _of(group)))
        for group, title in GROUPS.items()
    ).rstrip()


def mended() -> str:
    return "\n".join(map(_entry, _of(MENDED))).rstrip()


def _entry(program: Program) -> str:
    lines = [f"### {program.title}", ""]
    if program.text:
        lines += [program.text, ""]
    if program.way_round:
        lines += [f"**Workaround:** {program.way_round}", ""]
    lines += [_facts(program), "", '<details markdown="1">']
    name = program.path.relative_to(ROOT).as_posix()
    lines += [f"<summary><code>{name}</code></summary>", ""]
    return "\n".join([*lines, f"```py\n{program.source}```", "", "</details>", ""])


def _facts(program: Program) -> str:
    """Versions, the rule, the reference: one line, of what is known."""
    found = outcomes(program)
    good, bad = (
        ("Works", "Wrong") if program.group == MENDED else ("Does not occur", "Occurs")
    )
    wrong = (GONE,) if program.group == MENDED else (HOLDS, STUCK)
    ok = (HOLDS,) if program.group == MENDED else (GONE,)
    told = [
        f"{word} under torch {', '.join(versions)}."
        for word, kinds in ((bad, wrong), (good, ok))
        if (versions := [v for v, outcome in found.items() if outcome in kinds])
    ]
    stuck = [v for v, outcome in found.items() if outcome == STUCK]
    if stuck:
        told.append(f"The workaround fails under {', '.join(stuck)}.")
    if program.needs:
        told.append({"cuda": "Needs a GPU.", "inductor": "Inductor."}[program.needs])
    if program.code is not None:
        told.append(f"`torchproof check` reports {_code(program)}.")
    if program.reference is not None:
        told.append(f"[{_short(program.reference)}]({program.reference}).")
    return " ".join(told) or "Not run yet."


def _short(reference: str) -> str:
    thread = re.search(r"github\.com/pytorch/pytorch/\w+/(\d+)", reference)
    return f"pytorch#{thread[1]}" if thread else "PyTorch's page"


TABLES = {
    "limitations conditions": conditions,
    "limitations overview": overview,
    "limitations": entries,
    "mended overview": mended_overview,
    "mended": mended,
}
