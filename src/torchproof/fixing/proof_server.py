"""The process that runs proofs in forks: `python -m torchproof.fixing.proof_server`.

It imports torch, and what the parent prepares: the libraries of the target, but no file
that an edit may change. A job has the `ProofJob`, and the files for its entries and its
output.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
from typing import Any

import torch

from torchproof.fixing import proof_child
from torchproof.fixing.proof_job import NOT_FRESH, ProofJob
from torchproof.process import Stream, hold, serve
from torchproof.records import JsonObject
from torchproof.targets import overlay


class FileStream(Stream):
    """Writes entries to a file, one JSON document a line."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
        self._owner = os.getpid()

    def write(self, kind: str, **values: Any) -> None:
        if os.getpid() == self._owner:
            self._file.write(json.dumps({"kind": kind, **values}) + "\n")
            self._file.flush()


def main() -> int:
    hold()
    # Makes torch ask NVML instead of CUDA, which does not work after a fork.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # Imports what compiling needs. No backward pass: the threads of autograd would be
    # missing after a fork.
    torch.compile(_example, backend="aot_eager")(torch.ones(2))
    torch.compiler.reset()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    serve(_run, _import)
    return 0


def _import(message: JsonObject) -> None:
    for name in message["modules"]:
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else a collection in a fork would copy every page it touches


def _example(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).relu() + 1


def _run(job: JsonObject) -> int:
    proof = ProofJob.from_json(job["proof"])
    if proof.run.overlay and overlay.too_late(proof.run.overlay):
        return NOT_FRESH
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, descriptor in enumerate((nothing, output, output)):
        os.dup2(descriptor, number)
    return proof_child.prove(proof, FileStream(job["entries"]))


if __name__ == "__main__":
    sys.exit(main())
