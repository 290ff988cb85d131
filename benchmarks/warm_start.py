"""The first call of a service: compiled cold, against from a deploy pack.

    python -m benchmarks.warm_start [ROW ...] [--repeat N] [--packs FOLDER]

Every start is a fresh process with empty caches, and a cold one and one from the pack
take turns: of each pair the share is computed, since other work on the machine changes
both. The clock runs from a model that is
built, on its device, to the end of the first call: for `cold` that is torch.compile and
the call, for `pack` torchproof.load, which warms every shape of the pack, and the call.
Imports of torch and building the model are in neither; what is imported to compile is
in both, and `imports` is that alone. Exit code 1 when a pack takes a larger share of a
cold start, imports included, than the row allows.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.survey import Options, Row, Survey, answer

STARTS = ("cold", "pack", "imports")
_STEPS = "benchmarks/step_targets.py"


@dataclass(frozen=True)
class Service:
    """A target, how it runs, and the largest share of a cold start."""

    target: str
    size: str | None = None
    train: bool = False
    at_most: float = 0.15


SERVICES = {
    "nanovlm-tiny": Service("workload:nanovlm", "tiny"),
    "nanovlm-large": Service("workload:nanovlm", "large"),
    "gpt2-inference": Service(f"{_STEPS}:gpt2_inference"),
    "gpt2-training": Service(f"{_STEPS}:gpt2_training", train=True),
    "nanovlm-large-training": Service("workload:nanovlm", "large", train=True),
}


def measure(name: str, options: Options) -> Row:
    service = SERVICES[name]
    with tempfile.TemporaryDirectory() as folder:
        pack = (options.packs or Path(folder)) / name
        if not pack.exists():
            make_pack(service, pack)
        starts = [
            {"start": start} | started(service, pack, start)
            for _ in range(options.repeat or (1 if options.quick else 5))
            for start in STARTS
        ]
    return {"at_most": service.at_most, "starts": starts} | shares(starts)


def shares(starts: list[Row]) -> dict[str, float]:
    """Of a cold start: what a pack takes, with and without importing the compiler.

    Medians of the pairs, and the highest and lowest share of a pair.
    """
    cold, pack, imports = (
        [each["seconds"] for each in starts if each["start"] == start]
        for start in STARTS
    )
    triples = [*zip(cold, pack, imports, strict=True)]
    ratios = [p / c for c, p, _ in triples]
    without = [(p - i) / (c - i) for c, p, i in triples]
    return {
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "ratio_without_imports": statistics.median(without),
    }


def make_pack(service: Service, pack: Path) -> None:
    flags = ["--for", "deploy", "--strategy", "full", "-o", str(pack), "-q"]
    flags += ["--size", service.size] if service.size else []
    flags += ["--train"] if service.train else []
    answer("-m", "torchproof", "pack", service.target, *flags)


def started(service: Service, pack: Path, start: str) -> Row:
    """What one start reports, from a process of its own."""
    arguments = json.dumps({"start": start, "pack": str(pack), **asdict(service)})
    program = "import sys; from benchmarks.warm_start import child; child(sys.argv[1])"
    report: Row = json.loads(answer("-c", program, arguments))
    return report


def child(arguments: str) -> None:
    """One start, in this process."""
    import torch

    import torchproof
    from torchproof.targets import Job, calls, parse
    from torchproof.torch_private import environment as here

    spec = json.loads(arguments)
    target, train = parse(spec["target"]), spec["train"]
    job = calls.resolved(Job(target, size=spec["size"], train=train))
    loaded = calls.fresh(job)
    found: dict[str, Any] = {"size": job.size, "environment": here.describe(job)}
    with torch.set_grad_enabled(train):
        begin = time.perf_counter()
        if spec["start"] == "imports":
            torch.compile(torch.relu)
            importlib.import_module("torch._inductor.compile_fx")
        else:
            cold = spec["start"] == "cold"
            fn = loaded.fn
            model = torch.compile(fn) if cold else torchproof.load(spec["pack"], fn)
            calls.invoke(model, loaded.calls[0], train=train)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        found["seconds"] = time.perf_counter() - begin
    if spec["start"] == "pack":
        report = torchproof.status(model).pack or {}
        found |= {key: report.get(key) for key in ("graphs", "of", "misses", "why_not")}
    print(json.dumps(found))


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        if row["ratio"] > row["at_most"]:
            share = f"{row['ratio']:.2f}"
            yield f"{name}: {share} of a cold start, at most {row['at_most']}"


SURVEY = Survey(
    "warm_start",
    lambda options: list(SERVICES),
    measure,
    failures,
    quick=("nanovlm-tiny",),
    limit_s=3600,
    devices=("cpu", "cuda"),
    is_isolated=False,
    flags={
        "--repeat": {"type": int, "help": "of each start (5)"},
        "--packs": {"type": Path, "help": "keep the packs here"},
    },
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
