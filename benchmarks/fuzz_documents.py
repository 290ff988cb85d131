"""Sound documents of the formats that are mutated, with all that there can be in them.

fuzz_data/ has saved runs of each verb, a trace of torch and an experiment log.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "fuzz_data"
# Saved runs that `run_documents` has, in this order; the others have large records.
SMALL = ("check", "bench", "tune", "static", "empty")
FIXED = b"""import torch


def f(x):
    y = x.item()
    return x * y


def make():
    return f, [(torch.ones(3),)]
"""
EDITED = FIXED.replace(b"x.item()", b"x.sum()")


def _read(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_bytes())


def run_documents() -> list[dict[str, Any]]:
    """A check, a bench and a search, small and with all there can be."""
    return [_read(name) for name in SMALL]


def saved_runs() -> dict[str, dict[str, Any]]:
    """Runs of verbs whose records are large: load tests, and fixes of `FIXED`."""
    others = sorted(path.stem for path in DATA.glob("*.json"))
    runs = {name: _read(name) for name in others if name not in (*SMALL, "trace")}
    runs["fix"]["environment"]["torch"] = metadata.version("torch")
    return runs


TRACE: list[tuple[Any, str]] = [tuple(record) for record in _read("trace")]
LOG = (DATA / "experiment-log.md").read_bytes()
REQUESTS: tuple[tuple[float, Any], ...] = (
    (0.0, {"call": 0}),
    (0.25, {"call": 2}),
    (0.5, {"sizes": {"batch": 4, "sequence": 16}}),
    (1.5, {}),
)
SOURCE = b"""import torch
class Net(torch.nn.Module):
    def forward(self, x):
        y = x.item()  # torchproof: ignore[GB101]
        if x.sum() > 0:
            print(f"{x!r}")
        return torch.compile(self.inner)(x) + y
"""
CODINGS = (
    *("rot13", "utf-16", "utf-7", "base64", "zlib", "hex", "idna", "punycode", "bz2"),
    *("undefined", "unicode_escape", "raw_unicode_escape", "cp037", "no-such", "mbcs"),
    *("latin-1", "utf-8-sig", "ascii", "utf-32", "big5", "quopri"),
)
EXPRESSIONS = (
    *(b"-" * 20_000 + b"1", b"(" * 150 + b")" * 150, b"x" + b".a" * 20_000),
    *(b"x" + b"[0]" * 5_000, b"1" + b"+1" * 20_000, b"not " * 5_000 + b"x"),
    *(b"lambda: " * 900 + b"x", b"[" * 90 + b"x" + b"]" * 90, b"9" * 5_000),
)
