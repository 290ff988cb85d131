"""The parts of pages about versions of torch: compatibility, and its limitations."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tables import NOTHING, RESULTS, ROOT, Columns, Row, plain, render, table

sys.path.insert(0, str(ROOT))

from benchmarks.limitations import (
    FAILED,
    GONE,
    HOLDS,
    STUCK,
    version,
)
from torchproof import known_problems
from torchproof.known_problems import KnownProblem
from torchproof.torch_private.contract import Feature, contract
from torchproof.torch_private.replacements import STAYING

# -- compatibility ---------------------------------------------------------------------


@functools.cache
def results(folder: str) -> dict[str, Row]:
    """The results by versions of torch and Python, in their order."""
    paths = sorted((RESULTS / folder).glob("*.json"), key=lambda p: _numbers(p.stem))
    return {path.stem: json.loads(path.read_text()) for path in paths}


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


VERSIONS: Columns = {
    "torch": "{torch}",
    "Python": "{python}",
    "machine": "{machine}",
    "passed": "{counts[passed]}",
    "failed": lambda row: str(len(row["failed"])),
    "skipped": lambda row: str(row["counts"].get("skipped", 0)),
    "names missing": lambda row: str(sum(map(len, row["missing"].values()))),
    "commit": "{commit}",
}


def versions() -> str:
    """The tests that ran on each version."""
    rows = results("compat").values()
    failures = [
        f"torch {row['torch']}, Python {row['python']}: `{name}`"
        for row in rows
        for name in row["failed"]
    ]
    return render("failures", table=table(VERSIONS, rows), failures=failures)


def features() -> str:
    """Every feature that needs private torch, and what happens without it."""
    return plain(
        "feature | names | without them | lacking on torch | tests",
        [
            (
                *(each.name, str(sum(map(len, each.hooks.values()))), each.without),
                *(_lacking(each), f"`{each.tests}`"),
            )
            for each in contract()
        ],
    )


def _lacking(feature: Feature) -> str:
    """The probed versions that lack a name of a feature."""
    names = {name for listed in feature.hooks.values() for name in listed}
    probed = {
        name.partition("-")[0]: feature.name in row["missing"]
        for name, row in results("compat/probes").items()
        if names <= set(row["probed"])
    }
    if not probed:
        return "not probed"
    return ", ".join(name for name, lacks in probed.items() if lacks) or "none"


# -- limitations -----------------------------------------------------------------------

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
SHOWN = {HOLDS: "yes", GONE: "no", STUCK: "yes, no workaround", FAILED: NOTHING}


@functools.cache
def _limitations() -> list[Row]:
    """The oldest torch first."""
    paths = RESULTS.glob("limitations-*.json")
    found: list[Row] = [json.loads(path.read_text()) for path in paths]
    return sorted(
        found, key=lambda row: (_numbers(row["versions"]["torch"]), row["device"])
    )


@functools.cache
def _every() -> list[KnownProblem]:
    return known_problems.every()


def outcomes(program: KnownProblem) -> dict[str, str]:
    """By version of torch; a version it was not run under is left out."""
    device = "cuda" if program.needs == "cuda" else "cpu"
    noted = {version(each): HOLDS for each in program.wrong}
    noted |= {version(each): GONE for each in program.right}
    return noted | {
        version(found["versions"]["torch"]): found["rows"][program.name]["outcome"]
        for found in _limitations()
        if found["device"] == device and program.name in found["rows"]
    }


def conditions() -> str:
    """Where all of it was run."""
    return plain(
        "torch | Python | on | programs",
        [
            (
                found["versions"]["torch"],
                found["python"],
                found["machine"].get("gpu") or f"CPU, {found['machine']['arch']}",
                str(len(found["rows"])),
            )
            for found in _limitations()
        ],
    )


def overview() -> str:
    """One row a program, and whether it goes wrong under each torch."""
    columns = dict.fromkeys(version(f["versions"]["torch"]) for f in _limitations())

    def rows() -> Iterator[tuple[str, ...]]:
        for program in (one for group in GROUPS for one in _of(group)):
            found = outcomes(program)
            cells = [SHOWN[found[c]] if c in found else NOTHING for c in columns]
            title = f"[{program.title}](#{anchor(program.title)})"
            yield title, *cells, _code(program)

    return plain(["problem", *columns, "torchproof reports"], rows())


def _of(group: str) -> list[KnownProblem]:
    return [program for program in _every() if program.group == group]


def _code(program: KnownProblem) -> str:
    if program.code is None:
        return NOTHING
    return f"[{program.code}](rules.md#{program.code.lower()})"


def anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def entries() -> str:
    """Every group with its programs."""
    return "\n".join(
        f"## {title}\n\n" + "\n".join(map(_entry, _of(group)))
        for group, title in GROUPS.items()
    ).rstrip()


def _entry(program: KnownProblem) -> str:
    path = Path(program.path).relative_to(ROOT).as_posix()
    text = render("limitation", program=program, facts=_facts(program), path=path)
    return f"{text}\n"


_ISSUES = "https://github.com/pytorch/pytorch/issues/"


def _facts(program: KnownProblem) -> str:
    """Versions, the rule, the reference: one line, of what is known."""
    found = outcomes(program)
    kinds_by_word = {"Occurs": (HOLDS, STUCK), "Does not occur": (GONE,)}
    facts = [
        f"{word} under torch {', '.join(listed)}."
        for word, kinds in kinds_by_word.items()
        if (listed := [v for v, outcome in found.items() if outcome in kinds])
    ]
    stuck = [v for v, outcome in found.items() if outcome == STUCK]
    if stuck:
        facts.append(f"The workaround fails under {', '.join(stuck)}.")
    if program.needs:
        facts.append({"cuda": "Needs a GPU.", "inductor": "Inductor."}[program.needs])
    if program.code is not None:
        facts.append(f"`torchproof check` reports {_code(program)}.")
    references = [program.reference] if program.reference else []
    references += [f"{_ISSUES}{number}" for number in program.upstream]
    facts += [f"[{_short(each)}]({each})." for each in references]
    return " ".join(facts) or "Not run yet."


def _short(reference: str) -> str:
    thread = re.search(r"github\.com/pytorch/pytorch/\w+/(\d+)", reference)
    return f"pytorch#{thread[1]}" if thread else "PyTorch's page"


def replaced() -> str:
    """What stays replaced in a process that compiled a module."""
    cells = [(f"`{each.name}`", each.why, each.without) for each in STAYING]
    return plain("attribute | why | what happens without it", cells)


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/reference/reliability.md": {"replaced": replaced},
    "docs/reference/compat.md": {
        "versions": versions,
        "features": features,
    },
    "docs/reference/limitations.md": {
        "limitations conditions": conditions,
        "limitations overview": overview,
        "limitations": entries,
    },
}
