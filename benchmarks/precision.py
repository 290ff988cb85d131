"""How often reading is right: what it finds in installed packages, judged by hand.

    python benchmarks/precision.py [others] [--write] [--seed N] [--size N]

Reads the installed transformers as `torchproof check FOLDER --effort static` does, and
draws findings at random; with `others`, the loud findings (above `low`) in other
packages that are compiled. With `--write` the sample goes to a file in
benchmarks/results/; a verdict that somebody has written there stays with its finding.
Fill in `verdict` ("right" or "wrong") and `why` by hand. Exit code 1 when a sampled
finding has no verdict.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from torchproof.checking import suspicions

RESULTS = Path(__file__).resolve().parent / "results"
FILES = {"transformers": "precision.json", "others": "precision-others.json"}
OTHERS = (
    "diffusers",
    "timm",
    "accelerate",
    "kornia",
    "x_transformers",
    "vector_quantize_pytorch",
    "ema_pytorch",
    "rotary_embedding_torch",
    "e3nn",
    "gpytorch",
    "tensordict",
    "torch_geometric",
    "pytorch_optimizer",
    "heavyball",
    "schedulefree",
    "litgpt",
    "open_clip",
    "peft",
    "trl",
    "chronos",
    "neuralop",
    "monai",
    "speechbrain",
    "denoising_diffusion_pytorch",
    "segmentation_models_pytorch",
    "torchdiffeq",
    "vit_pytorch",
    "torchmetrics",
    "mambapy",
    "zuko",
    "flow_matching",
    "pytorch_metric_learning",
    "lightly",
    "torchtune",
    "demucs",
    "timesfm",
)
SEED, SIZE = 2026, 50


def folder_of(package: str) -> Path | None:
    found = importlib.util.find_spec(package)
    return Path(found.origin).parent if found and found.origin else None


def read(which: str) -> dict[str, Any]:
    """Every finding as a row, and what the reading took."""
    names = OTHERS if which == "others" else (which,)
    folders = {name: folder for name in names if (folder := folder_of(name))}
    begin = time.perf_counter()
    rows: list[dict[str, Any]] = []
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
        "seconds": round(time.perf_counter() - begin, 1),
        "cores": os.cpu_count(),
        "found": len(rows),
        "codes": dict(sorted(Counter(row["code"] for row in rows).items())),
        "rows": rows,
    }


def versions(folders: dict[str, Path], which: str) -> dict[str, Any]:
    installed = importlib.metadata.packages_distributions()
    every = {
        name: importlib.metadata.version(installed[name][0])
        for name in folders
        if name in installed
    }
    return {"packages": every} if which == "others" else every


def rows_of(found: suspicions.Reading, folder: Path) -> list[dict[str, Any]]:
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


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What identifies a finding here; its message may be reworded."""
    return row["code"], row["file"], row["line"], row["source"]


def sampled(
    rows: list[dict[str, Any]], results: Path, seed: int, size: int
) -> list[dict[str, Any]]:
    """A sample in the order of the files, with the verdicts that are known."""
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    if results.exists():
        known = {key(row): row for row in json.loads(results.read_text())["sample"]}
    # Judged findings stay in the sample while they are found; a draw fills the rest.
    drawn = sorted(rows, key=lambda row: (key(row) not in known, _lot(row, seed)))
    chosen = drawn[:size]
    chosen.sort(key=lambda row: (row["file"], row["line"]))
    empty = {"verdict": None, "why": ""}
    return [
        {**row, **{k: known.get(key(row), empty)[k] for k in empty}} for row in chosen
    ]


def _lot(row: dict[str, Any], seed: int) -> str:
    return hashlib.sha256(repr((seed, *key(row))).encode()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("which", nargs="?", default="transformers", choices=FILES)
    parser.add_argument("--write", action="store_true", help="keep the sample")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--size", type=int, default=SIZE)
    options = parser.parse_args()
    results = RESULTS / FILES[options.which]
    every = read(options.which)
    rows = every.pop("rows")
    sample = sampled(rows, results, options.seed, options.size)
    for row in sample:
        place = f"{row['file']}:{row['line']}"
        print(f"{row['verdict'] or '-':6} {row['code']} {place} {row['source'][:90]}")
    print({k: v for k, v in every.items() if k != "codes"}, every["codes"])
    if options.write:
        which = "" if options.which == "transformers" else f" {options.which}"
        kept = {"command": f"python benchmarks/precision.py{which} --write"}
        kept |= every | {"seed": options.seed, "sample": sample}
        results.write_text(json.dumps(kept, indent=1) + "\n")
    return int(any(row["verdict"] is None for row in sample))


if __name__ == "__main__":
    sys.exit(main())
