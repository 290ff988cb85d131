"""A recorded trace gives the same diagnosis as the live run it was recorded from."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from rule_programs import Program, programs

from torchproof.checking import rules
from torchproof.observe.capture import observe as read
from torchproof.records.run import Finding, Observation, UserError
from torchproof.targets.options import Options
from torchproof.targets.target import load, parse

# One program of each kind of record: a break, a skipped frame, recompiles by size and
# value, the limit, an error. The first three are read each time.
NAMES = ("GB101-bad", "RC201-bad", "CE701-bad_3")
MORE = ("GB104-bad_4", "GB107-bad", "RC213-bad", "RC290-bad", "DS601-bad", "CE704-bad")
PROGRAMS = {each.name: each for each in programs()}
TRACED = {
    "graph_break",
    "skipped_frame",
    "recompile",
    "recompile_limit",
    "specialization",
}


def record(program: Program, folder: str) -> None:
    """Runs a program under plain torch.compile with TORCH_TRACE set, nothing else."""
    import torch

    os.environ["TORCH_TRACE"] = folder
    torch._logging._internal.LOG_TRACE_HANDLER = None
    torch._logging._internal._init_logs()  # reads TORCH_TRACE, as at import
    loaded = load(parse(program.target))
    fn = loaded.fn
    if not program.options.get("as_written"):
        options = {"backend": "eager", **program.options.get("compile", {})}
        fn = torch.compile(fn, **options)
    for index, call in enumerate(loaded.calls):
        if loaded.before_call:
            loaded.before_call(loaded.fn, index)
        try:
            fn(**call) if isinstance(call, dict) else fn(*call)
        except Exception:  # the programs that fail to compile do so here too
            return


def traced(program: Program, folder: Path) -> Observation:
    """What the trace of a program says, recorded in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=record, args=(program, str(folder)))
    process.start()
    process.join(60)
    return read(parse(f"trace:{folder}"), Options(), lambda text: None)


def diagnosis(findings: list[Finding]) -> set[tuple[Any, ...]]:
    """What a trace can know: code, kind, place and cause."""
    return {
        (f.code, f.kind, f.file, f.line, f.function, f.owner, f.cause)
        for f in findings
        if f.kind in TRACED or f.code.startswith("CE")
    }


@pytest.mark.parametrize(
    "name", [*NAMES, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)]
)
def test_trace_and_live_run_agree(name: str, observe: Any, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    expected = diagnosis(rules.check(observe(program.target, **program.options)))
    assert expected, "the live run found nothing to compare"
    found = traced(program, tmp_path)
    assert diagnosis(rules.check(found)) == expected
    assert found.calls is None and found.compiled_calls is None
    counted = [
        f for f in rules.check(found) if f.kind in {"graph_break", "skipped_frame"}
    ]
    assert all(f.count is None and f.steps is None for f in counted)


def test_truncated_trace_gives_what_it_holds(tmp_path: Path) -> None:
    traced(PROGRAMS["GB104-bad"], tmp_path)
    [log] = tmp_path.iterdir()
    whole = log.read_text()
    log.write_text(whole[: int(len(whole) * 0.97)])
    found = rules.check(read(parse(f"trace:{tmp_path}"), Options(), lambda text: None))
    assert "GB104" in {f.code for f in found}


def test_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(json.dumps({"a": 1}))
    with pytest.raises(UserError, match=str(tmp_path)):
        read(parse(f"trace:{tmp_path}"), Options(), lambda text: None)
