"""Reduces graph candidates as long as they fail in the same way.

torch's minifier removes operations; what remains is a short program, whose calls,
inputs and sizes the reducer of programs makes smaller.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.programs.program_reducer import reduce_program
from torchproof.process import DEVNULL, Ended, spawn
from torchproof.records import JsonObject

Fails = Callable[[Candidate], bool]
_MINIFIER_SHARE = 0.7  # of the time


def variants(candidate: Candidate) -> Iterator[Candidate]:
    """Yields it with synthetic tensors, recorded inputs, and recorded weights."""
    yield candidate
    for each in candidate.record["variants"]:
        files = {name: Path(path).read_bytes() for name, path in each["files"].items()}
        yield replace(
            candidate, source=each["source"], about=each["about"], files=files
        )


def operations(source: str) -> int:
    """Counts the operations in the source of a graph."""
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith(("forward", "part_", "region_"))
    ]
    statements = [each for function in functions for each in function.body]
    return sum(
        not isinstance(each, ast.Return) and not _reads_state(each)
        for each in statements
    )


def _reads_state(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(value, ast.Attribute) and ast.unparse(value).startswith("self.")


def reduce_graph(candidate: Candidate, fails: Fails, deadline: float) -> Candidate:
    """Returns the smallest failing candidate found by `deadline` (`time.monotonic`)."""
    best = candidate
    if not candidate.files:  # the minifier does not know recorded tensors
        now = time.monotonic()
        best = _minify(candidate, fails, now + _MINIFIER_SHARE * (deadline - now))
    best = reduce_program(best, fails, deadline)
    return replace(best, size=min(operations(best.source), candidate.size))


def _minify(candidate: Candidate, fails: Fails, deadline: float) -> Candidate:
    """Tries each graph that torch's minifier proposes; none if it cannot handle it."""
    best = candidate
    tried = {candidate.source: True}
    message: JsonObject = {"source": candidate.source}
    with spawn("-m", "torchproof.packs.repro.graphs", output=DEVNULL) as child:
        while time.monotonic() < deadline:
            try:
                reply = child.ask(message, timeout_s=deadline - time.monotonic())
            except (Ended, TimeoutError):
                break
            source = reply["source"]
            smaller = replace(candidate, source=source, size=operations(source))
            if source not in tried:
                tried[source] = fails(smaller)
            if tried[source] and smaller.size <= best.size:
                best = smaller
            message = {"fails": tried[source]}
    return best
