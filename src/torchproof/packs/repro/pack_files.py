"""What lies beside `repro.py` in a pack: the report to file, versions, logs, graphs.

Comes in: a symptom, the program that shows it and how it was verified. Goes out: texts
that still have to be redacted, save those that say they are final.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchproof.packs.redaction.redactor import Redactor
from torchproof.packs.repro import readme as report
from torchproof.packs.repro import versions
from torchproof.packs.repro.candidate import Candidate, Outcome, Settings
from torchproof.packs.repro.failure_signature import Symptom
from torchproof.packs.repro.target_recording import Captured


@dataclass(frozen=True)
class Written:
    """All that is known when a repro has failed as stated in a clean process."""

    symptom: Symptom
    settings: Settings
    candidate: Candidate
    first: Candidate  # before it was made smaller
    verified: Outcome
    repro: str
    facts: Mapping[str, Any]
    command: str
    target: str
    minified: bool


@dataclass(frozen=True)
class Paper:
    """One file; a final one was verified as it is and is not to be touched."""

    content: bytes
    about: str
    final: bool = False


@dataclass(frozen=True)
class Row:
    """One line of what a pack holds."""

    path: str
    size: int
    about: str

    def __str__(self) -> str:
        return f"{self.path}  {self.size:,} bytes  {self.about}"


def gathered(environment: Mapping[str, Any], seen: Captured) -> dict[str, Any]:
    """The facts of the run, of its repetition, and of the machine."""
    told = {k: v for k, v in seen.environment.items() if k != "kind"}
    configs = {k: v for k, v in seen.configs.items() if k != "kind"}
    here = {**versions.machine(), **environment, **told, "configs": configs}
    if here.get("triton") is None:
        libraries = here["libraries"]
        here["triton"] = libraries.get("triton") or libraries.get("pytorch-triton")
    return here


def header(symptom: Symptom, facts: Mapping[str, Any]) -> str:
    """Below the headline of `repro.py`."""
    lines = [f"Seen with {versions.brief(facts)}."]
    lines += [f"{name}: {address}" for name, address in report.pages(symptom)]
    if symptom.search:
        lines.append(f"Reports of the same: {report.query(symptom.search)}")
    return "\n".join(lines)


def files(written: Written, graphs: Sequence[Candidate], log: str) -> dict[str, Paper]:
    """Everything but the report itself, by name."""
    found = {
        "repro.py": Paper(written.repro.encode(), written.candidate.about, final=True),
        "environment.txt": Paper(
            versions.text(written.facts).encode(), "versions, machine and variables"
        ),
        "command.txt": Paper(
            f"{written.command}\n".encode(), "the command that made this pack"
        ),
        "symptom.json": Paper(_plain(details(written)), "the failure as data"),
    }
    for name, content in written.candidate.files.items():
        found[name] = Paper(content, "values that the failure needs", final=True)
    if log.strip():
        found["logs/torch.txt"] = Paper(
            log.encode("utf-8", "replace"), "what torch logs when repro.py runs"
        )
    for index, graph in enumerate(graphs):
        mark = re.sub(r"\W+", "_", graph.origin).strip("_") or str(index)
        name = f"graphs/graph_{mark}.py"
        if name in found:
            name = f"graphs/graph_{mark}_{index}.py"
        found[name] = Paper(graph.source.encode(), graph.about)
    return found


def redacted(papers: Mapping[str, Paper], redactor: Redactor) -> dict[str, Paper]:
    """The files as they are written, so that sizes and counts are those of the pack."""
    found = {}
    for name, paper in papers.items():
        content = paper.content
        if not paper.final and name.endswith(".py"):
            content = redactor.source(content.decode()).encode()
        elif not paper.final:
            content = redactor.bytes(content)
        path = "/".join(redactor.name(part) for part in name.split("/"))
        kept = name if paper.final else path
        found[kept] = Paper(content, redactor.text(paper.about), final=True)
    return found


def listing(sizes: Mapping[str, tuple[int, str]]) -> list[Row]:
    """One row a file: the program first, then by name."""
    order = sorted(sizes, key=lambda name: (name != "repro.py", "/" in name, name))
    return [Row(name, *sizes[name]) for name in order]


def readme(written: Written, rows: Sequence[Row], counts: Mapping[str, int]) -> str:
    """The report in the form PyTorch asks for, and below it what the pack is."""
    return report.report(written, rows, counts)


def details(written: Written) -> dict[str, Any]:
    """What the manifest says of a repro pack."""
    symptom, candidate, first = written.symptom, written.candidate, written.first
    return {
        "symptom": {
            "kind": symptom.kind,
            "judge": symptom.judge,
            "headline": symptom.headline,
            "expected": dict(symptom.expected),
            "ids": list(symptom.ids),
            "search": symptom.search,
            "code": symptom.finding.code if symptom.finding else None,
        },
        "settings": written.settings.to_json(),
        "form": candidate.form,
        "minified": written.minified,
        "size": {
            "unit": report.unit(candidate),
            "first": first.size,
            "last": candidate.size,
        },
        "verified": {
            "verdict": written.verified.verdict,
            "line": written.verified.text,
            "seconds": round(written.verified.seconds, 1),
        },
    }


def _plain(value: Any) -> bytes:
    return (json.dumps(value, indent=1, default=repr) + "\n").encode()
