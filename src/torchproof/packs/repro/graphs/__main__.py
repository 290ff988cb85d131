"""torch's minifier over the graph of a candidate; candidates go out, answers come in.

One line of JSON each: first the candidate's source comes in, then each candidate goes out
as a graph and whether it fails comes in.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from torchproof.packs.repro.graphs.expressions import NotPortable
from torchproof.packs.repro.graphs.fx_reader import Reader, Run
from torchproof.process import parent_death
from torchproof.torch_private import minified, replace_backends, without_regions


class _Captured(Exception):
    """The first graph is there, with what it is called with."""

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.gm, self.inputs = gm, inputs


def main() -> None:
    parent_death.hold()
    answers, sys.stdout = sys.stdout, sys.stderr  # what torch prints is no candidate
    job = json.loads(sys.stdin.readline())
    gm, inputs = _captured(job["source"])
    if not all(isinstance(value, Tensor) for value in inputs):
        return  # of sizes that are symbols, torch's minifier keeps none

    def fails(candidate: fx.GraphModule, values: Sequence[Any]) -> bool:
        try:
            graph = _graph_ir(candidate, values)
        except NotPortable:
            return False
        print(json.dumps(graph), file=answers, flush=True)
        return bool(json.loads(sys.stdin.readline())["fails"])

    minified(gm, inputs, fails)


def _captured(source: str) -> tuple[fx.GraphModule, Sequence[Any]]:
    # Dynamo looks a function's module up by name.
    module: Any = types.ModuleType("torchproof_candidate")
    sys.modules[module.__name__] = module
    exec(compile(source, module.__name__, "exec"), vars(module))
    fn, calls = module.make()

    def run(gm: fx.GraphModule, _: str) -> Callable[..., Any]:
        def stop(*args: Any) -> None:
            raise _Captured(gm, args)

        return stop

    try:
        with replace_backends(run):
            compiled: Any = torch.compile(fn)
            compiled(*calls[0])
    except _Captured as captured:
        return captured.gm, captured.inputs
    raise AssertionError("nothing was captured")


def _graph_ir(gm: fx.GraphModule, values: Sequence[Any]) -> dict[str, Any]:
    reader = Reader(gm)
    reader.read_inputs(values)
    reader.read_lines()
    plain = without_regions(gm)
    Run(plain, reader).run(*values)
    return reader.graph_ir().to_json()


if __name__ == "__main__":
    main()
