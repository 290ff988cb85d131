"""The files beside `repro.py` in a pack: README, versions, logs, captured graphs.

Takes a verified repro, returns the contents of the files by name. `redact` removes
private data from all of them except those marked `final`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torchproof.packs.redaction.redactor import Redactor
from torchproof.packs.repro import readme, versions
from torchproof.packs.repro.candidate import (
    Candidate,
    PackFile,
    RecordedFacts,
    VerifiedRepro,
)
from torchproof.packs.repro.failure_signature import FailureSignature
from torchproof.records import JsonObject


def header(signature: FailureSignature, facts: RecordedFacts) -> str:
    """Returns the lines below the headline of `repro.py`."""
    lines = [f"Seen with {versions.brief(facts)}."]
    lines += [f"{name}: {address}" for name, address in readme.pages(signature)]
    if signature.search:
        lines.append(f"Similar reports: {readme.query(signature.search)}")
    return "\n".join(lines)


def files(verified: VerifiedRepro, graphs: Sequence[Candidate]) -> dict[str, PackFile]:
    """Returns all files except the README, by name."""
    candidate = verified.candidate
    contents = {
        "repro.py": PackFile(verified.repro.encode(), candidate.about, final=True),
        "environment.txt": PackFile(
            verified.versions.encode(), "versions, machine and variables"
        ),
        "command.txt": PackFile(
            f"{verified.command}\n".encode(), "the command that made this pack"
        ),
        "symptom.json": PackFile(_json(details(verified)), "the failure as data"),
    }
    for name, content in candidate.files.items():
        contents[name] = PackFile(content, "tensors that the repro loads", final=True)
    if log := verified.outcome.output.strip():
        contents["logs/torch.txt"] = PackFile(
            log.encode("utf-8", "replace"), "torch's log of repro.py"
        )
    for index, graph in enumerate(graphs):
        suffix = re.sub(r"\W+", "_", graph.origin).strip("_") or str(index)
        name = f"graphs/graph_{suffix}.py"
        if name in contents:
            name = f"graphs/graph_{suffix}_{index}.py"
        contents[name] = PackFile(graph.source.encode(), graph.about)
    return contents


def redact(
    pack_files: Mapping[str, PackFile], redactor: Redactor
) -> dict[str, PackFile]:
    """Redacts before the README is written, which lists sizes and replacements."""
    redacted = {}
    for name, file in pack_files.items():
        content = file.content
        if not file.final:
            clean = redactor.source if name.endswith(".py") else redactor.text
            content = clean(content.decode()).encode()
        clean_name = "/".join(redactor.name(part) for part in name.split("/"))
        new_name = name if file.final else clean_name
        redacted[new_name] = PackFile(content, redactor.text(file.about), final=True)
    return redacted


def details(verified: VerifiedRepro) -> JsonObject:
    """Returns the `details` of the manifest; their keys are part of the pack format."""
    signature = verified.signature
    candidate = verified.candidate
    return {
        "symptom": {
            "kind": signature.kind,
            "judge": signature.oracle,
            "headline": signature.headline,
            "expected": dict(signature.expected),
            "ids": list(signature.ids),
            "search": signature.search,
            "code": signature.finding.code if signature.finding else None,
        },
        "settings": verified.settings.to_json(),
        "form": candidate.form,
        "minified": verified.minified,
        "size": {
            "unit": readme.unit(candidate),
            "first": verified.first.size,
            "last": candidate.size,
        },
        "verified": {
            "verdict": verified.outcome.verdict,
            "line": verified.outcome.text,
            "seconds": round(verified.outcome.seconds, 1),
        },
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, default=repr) + "\n").encode()
