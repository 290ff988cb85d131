"""How often reading is right: what it finds in installed packages, judged by hand.

    python -m benchmarks.precision [transformers|others] [--quick]

Reads the installed transformers as `torchproof check FOLDER --effort static` does, and
draws findings at random; `others` draws from the findings above `low` in other packages
that are compiled. Fill in `verdict` ("right" or "wrong") and `why` in the result by
hand: a verdict stays with its finding. Exit code 1 when a sampled finding has no
verdict, or fewer than nine in ten are right.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.survey import Options, Row, Survey
from torchproof.checking import suspicions

OTHERS = """
diffusers timm accelerate kornia x_transformers vector_quantize_pytorch ema_pytorch
rotary_embedding_torch e3nn gpytorch tensordict torch_geometric pytorch_optimizer
heavyball schedulefree litgpt open_clip peft trl chronos neuralop monai speechbrain
denoising_diffusion_pytorch segmentation_models_pytorch torchdiffeq vit_pytorch
torchmetrics mambapy zuko flow_matching pytorch_metric_learning lightly torchtune
demucs timesfm
"""
SEED, SIZE = 2026, 50
RIGHT = 0.9  # of the sample, at least


def folder_of(package: str) -> Path | None:
    found = importlib.util.find_spec(package)
    return Path(found.origin).parent if found and found.origin else None


def read(which: str) -> Row:
    """Every finding as a row, and what the reading took."""
    names = OTHERS.split() if which == "others" else [which]
    folders = {name: folder for name in names if (folder := folder_of(name))}
    begin = time.perf_counter()
    rows: list[Row] = []
    files = 0
    for folder in folders.values():
        found = suspicions.read([folder])
        files += found.files
        rows += rows_of(found, folder)
    if which == "others":
        rows = [row for row in rows if row["severity"] != "low"]
    return {
        **versions(folders, which),
        "files": files,
        "read_s": round(time.perf_counter() - begin, 1),
        "cores": os.cpu_count(),
        "found": len(rows),
        "codes": dict(sorted(Counter(row["code"] for row in rows).items())),
        "rows": rows,
    }


def versions(folders: dict[str, Path], which: str) -> Row:
    installed = importlib.metadata.packages_distributions()
    every = {
        name: importlib.metadata.version(installed[name][0])
        for name in folders
        if name in installed
    }
    return {"packages": every} if which == "others" else every


def rows_of(found: suspicions.Reading, folder: Path) -> list[Row]:
    rows = []
    for suspicion in found.suspicions:
        finding = suspicion.finding
        assert finding.file is not None
        row = {
            "code": finding.code,
            "severity": finding.severity,
            "file": Path(finding.file).relative_to(folder.parent).as_posix(),
            "line": finding.line,
            "function": finding.function,
            "source": (finding.source or "").strip(),
            "message": finding.message,
        }
        rows.append(row)
    return rows


def key(row: Row) -> tuple[Any, ...]:
    """What identifies a finding here; its message may be reworded."""
    return row["code"], row["file"], row["line"], row["source"]


def sampled(rows: list[Row], judged: list[Row]) -> list[Row]:
    """A sample in the order of the files, with the verdicts that are known."""
    known = {key(row): row for row in judged}
    # Judged findings stay in the sample while they are found; a draw fills the rest.
    drawn = sorted(rows, key=lambda row: (key(row) not in known, _lot(row)))
    chosen = sorted(drawn[:SIZE], key=lambda row: (row["file"], row["line"]))
    empty = {"verdict": None, "why": ""}
    return [
        {**row, **{k: known.get(key(row), empty)[k] for k in empty}} for row in chosen
    ]


def _lot(row: Row) -> str:
    return hashlib.sha256(repr((SEED, *key(row))).encode()).hexdigest()


def measure(which: str, options: Options) -> Row:
    found = read(which)
    every = found.pop("rows")
    known = SURVEY.read()["rows"].get(which, {}).get("sample", [])
    return {**found, "seed": SEED, "sample": sampled(every, known)}


def failures(found: dict[str, Row]) -> Iterator[str]:
    for which, row in found.items():
        verdicts = Counter(each["verdict"] for each in row["sample"])
        for each in row["sample"]:
            if each["verdict"] is None:
                yield f"{which}: {each['code']} at {each['file']}:{each['line']}: judge"
        if verdicts["right"] < RIGHT * verdicts.total():
            yield f"{which}: {verdicts['right']} of {verdicts.total()} are right"


SURVEY = Survey(
    "precision",
    lambda options: ("transformers", "others"),
    measure,
    failures,
    quick=("transformers",),
    packages=("transformers",),
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
