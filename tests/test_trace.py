"""A recorded trace gives the same diagnosis as the live run it was recorded from."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from installed_library import install, script
from rule_programs import programs

from torchproof.checking import rules
from torchproof.observe.capture import observe as read
from torchproof.records.events import Observation
from torchproof.records.options import Options
from torchproof.records.run import Finding, UserError
from torchproof.targets.target import load, parse

Targets = dict[str, tuple[str, Mapping[str, Any]]]
# One program of each kind of record: a break, a skipped frame, recompiles by size and
# value, the limit, an error.
NAMES = ("GB105-bad", "GB104-bad_2", "RC201-bad", "RC290-bad", "CE701-bad_3")
TRACED = {
    "graph_break",
    "skipped_frame",
    "recompile",
    "recompile_limit",
    "specialization",
}
LIBRARY = """\
import logging
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        h = x.sin()
        logging.getLogger("fakelib").warning("model")
        return h.sum()

def trains(model, x):
    model(x).backward()  # the library calls what is compiled
"""
USES_LIBRARY = """\
x = torch.randn(3, requires_grad=True)
torch.compile(fakelib.Model(), backend="eager")(x)
m = fakelib.Model(); m.compile(backend="eager"); fakelib.trains(m, x)
"""


def record_all(targets: Targets, folder: Path) -> None:
    """Runs each target under plain torch.compile with TORCH_TRACE set, nothing else."""
    import torch

    for name, (target, options) in targets.items():
        torch._dynamo.reset()
        os.environ["TORCH_TRACE"] = str(folder / name)
        torch._logging._internal.LOG_TRACE_HANDLER = None
        torch._logging.structured.INTERN_TABLE.clear()  # each trace names its files
        torch._logging._internal._init_logs()  # reads TORCH_TRACE, as at import
        if target.endswith(".py"):
            runpy.run_path(target, run_name="__main__")
        else:
            call(target, options)


def call(target: str, options: Mapping[str, Any]) -> None:
    import torch

    loaded = load(parse(target))
    fn = loaded.fn
    if not options.get("as_written"):
        fn = torch.compile(fn, **{"backend": "eager", **options.get("compile", {})})
    for index, each in enumerate(loaded.calls):
        if loaded.before_call:
            loaded.before_call(loaded.fn, index)
        try:
            fn(**each) if isinstance(each, dict) else fn(*each)
        except Exception:  # the programs that fail to compile do so here too
            return


def diagnosis(seen: Observation) -> set[tuple[Any, ...]]:
    """What a trace can know: code, kind and place; it lacks arguments of compile."""

    def facts(f: Finding) -> tuple[Any, ...]:
        return f.code, f.kind, f.file, f.line, f.function, f.owner

    found = rules.check(seen)
    return {facts(f) for f in found if f.kind in TRACED or f.code.startswith("CE")}


def trace(folder: Path) -> Observation:
    return read(parse(f"trace:{folder}"), Options(), lambda text: None)


def test_trace_and_live_run_agree(observe_all: Any, tmp_path: Path) -> None:
    every = {each.name: each for each in programs()}
    targets: Targets = {n: (every[n].target, every[n].options) for n in NAMES}
    library = install(tmp_path, LIBRARY)
    targets["library"] = str(script(library, USES_LIBRARY)), {}
    for name in targets:
        (tmp_path / name).mkdir()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=record_all, args=(targets, tmp_path))
    process.start()
    live = observe_all(list(targets.values()))
    process.join(120)
    for name, seen in zip(targets, live, strict=True):
        recorded = trace(tmp_path / name)
        assert diagnosis(seen), "the live run found nothing to compare"
        assert diagnosis(recorded) == diagnosis(seen)
        assert recorded.calls is None and recorded.compiled_calls is None
        for finding in rules.check(recorded):
            if finding.kind in {"graph_break", "skipped_frame"}:
                assert finding.count is None and finding.steps is None
    assert {place[2] for place in diagnosis(seen)} == {str(library)}

    [log] = (tmp_path / "GB104-bad_2").iterdir()
    whole = log.read_text()
    log.write_text(whole[: int(len(whole) * 0.97)])
    assert "GB104" in {f.code for f in rules.check(trace(log.parent))}


def test_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(json.dumps({"a": 1}))
    with pytest.raises(UserError, match=str(tmp_path)):
        trace(tmp_path)
