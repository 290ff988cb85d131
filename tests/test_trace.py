"""A recorded trace gives the same diagnosis as the live run it was recorded from."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Sequence
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
# value, the limit, an error.
NAMES = ("GB101-bad", "GB104-bad_4", "RC201-bad", "RC290-bad", "CE701-bad_3")
PROGRAMS = {each.name: each for each in programs()}
TRACED = {
    "graph_break",
    "skipped_frame",
    "recompile",
    "recompile_limit",
    "specialization",
}


def record_all(folders: dict[str, str]) -> None:
    for name, folder in folders.items():
        record(PROGRAMS[name], folder)


def record(program: Program, folder: str) -> None:
    """Runs a program under plain torch.compile with TORCH_TRACE set, nothing else."""
    import torch

    torch._dynamo.reset()
    os.environ["TORCH_TRACE"] = folder
    torch._logging._internal.LOG_TRACE_HANDLER = None
    torch._logging.structured.INTERN_TABLE.clear()  # each trace names its files
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


def traced(names: Sequence[str], folder: Path) -> dict[str, Observation]:
    """What the traces of programs say, all recorded in one process."""
    folders = {name: str(folder / name) for name in names}
    for each in folders.values():
        Path(each).mkdir()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=record_all, args=(folders,))
    process.start()
    process.join(120)
    return {
        name: read(parse(f"trace:{each}"), Options(), lambda text: None)
        for name, each in folders.items()
    }


def diagnosis(findings: list[Finding]) -> set[tuple[Any, ...]]:
    """What a trace can know: code, kind, place and cause."""
    return {
        (f.code, f.kind, f.file, f.line, f.function, f.owner, f.cause)
        for f in findings
        if f.kind in TRACED or f.code.startswith("CE")
    }


@pytest.mark.slow
def test_trace_and_live_run_agree(observe_all: Any, tmp_path: Path) -> None:
    programs = [PROGRAMS[name] for name in NAMES]
    live = observe_all([(each.target, each.options) for each in programs])
    traces = traced(NAMES, tmp_path)
    for name, seen in zip(NAMES, live, strict=True):
        expected, found = diagnosis(rules.check(seen)), traces[name]
        assert expected, "the live run found nothing to compare"
        assert diagnosis(rules.check(found)) == expected
        assert found.calls is None and found.compiled_calls is None
        for finding in rules.check(found):
            if finding.kind in {"graph_break", "skipped_frame"}:
                assert finding.count is None and finding.steps is None


def test_truncated_trace_gives_what_it_holds(tmp_path: Path) -> None:
    traced(["GB104-bad"], tmp_path)
    [log] = (tmp_path / "GB104-bad").iterdir()
    whole = log.read_text()
    log.write_text(whole[: int(len(whole) * 0.97)])
    target = parse(f"trace:{log.parent}")
    found = rules.check(read(target, Options(), lambda text: None))
    assert "GB104" in {f.code for f in found}


def test_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(json.dumps({"a": 1}))
    with pytest.raises(UserError, match=str(tmp_path)):
        read(parse(f"trace:{tmp_path}"), Options(), lambda text: None)
