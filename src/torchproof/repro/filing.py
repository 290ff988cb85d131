"""The files of a repro pack."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchproof.repro.draft import Draft, Outcome, Settings
from torchproof.repro.symptom import Symptom


@dataclass(frozen=True)
class Paper:
    """A file; `final` ones were redacted before they were verified."""

    content: bytes
    about: str
    final: bool = False


@dataclass(frozen=True)
class Reproduced:
    """A failure and the program that shows it, verified in a clean process."""

    symptom: Symptom
    settings: Settings
    whole: Draft  # as it was first seen to fail
    draft: Draft  # as it is packed
    repro: str  # the text of repro.py
    outcome: Outcome
    minified: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    command: str = ""
    target: str = ""

    @property
    def unit(self) -> str:
        return "nodes" if self.draft.form == "graph" else "statements"

    def details(self) -> dict[str, Any]:
        """What the manifest says of it."""
        found = self.symptom.finding
        return {
            "symptom": {
                "kind": self.symptom.kind,
                "headline": self.symptom.headline,
                "code": found.code if found else None,
                "ids": list(self.symptom.ids),
                "search": self.symptom.search,
            },
            "form": self.draft.form,
            "size": {
                "packed": self.draft.size,
                "before": self.whole.size,
                "unit": self.unit,
            },
            "minified": self.minified,
            "settings": self.settings.to_json(),
            "verified": {
                "verdict": self.outcome.text,
                "seconds": round(self.outcome.seconds, 1),
                "process": "python -I, torch alone, empty folder, empty caches",
            },
        }


def papers(found: Reproduced, graphs: Sequence[Draft], log: str) -> dict[str, Paper]:
    """All but the README and the manifest."""
    files = {
        "repro.py": Paper(found.repro.encode(), found.draft.about, final=True),
        "environment.json": Paper(
            (json.dumps(dict(found.facts), indent=1, default=str) + "\n").encode(),
            "versions, device, variables and settings that steer torch",
        ),
        "torch.log": Paper(log.encode(), "what torch logged when repro.py ran"),
    }
    for name, content in found.draft.files.items():
        files[name] = Paper(content, "real values of inputs", final=True)
    for number, graph in enumerate(graphs):
        about = f"captured graph {graph.origin}, {graph.size} nodes: {graph.about}"
        files[f"graphs/{number:02d}.py"] = Paper(graph.source.encode(), about)
    return files
