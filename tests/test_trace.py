"""A recorded trace gives the same diagnosis as the live run it was recorded from."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from test_rules import FOLDER, settings

from torchproof.checking import rules
from torchproof.observe.capture import observe as read
from torchproof.records.run import Finding, UserError
from torchproof.targets.options import Options
from torchproof.targets.target import load, parse

# One program of each family, and those whose records are unlike the others.
SAMPLE = tuple(
    f"{code}/bad{face}"
    for code, faces in {
        **dict.fromkeys(["GB101", "GB102", "GB103", "GB105", "GB106", "GB107"], ("",)),
        **dict.fromkeys(["GB109", "GB111", "RC201", "RC202", "RC203", "RC204"], ("",)),
        **dict.fromkeys(["RC205", "RC210", "RC211", "RC212", "RC213", "RC214"], ("",)),
        **dict.fromkeys(["RC215", "RC216", "RC217", "RC290", "DS601", "DS603"], ("",)),
        "CE701": ("_3",),  # which fails to compile on every version of torch
        "CE704": ("",),
        "GB104": ("", "_4"),
        "GB116": ("_6",),
    }.items()
    for face in faces
)
# Read each time; the others where slow tests are.
QUICK = {
    *("GB101/bad", "RC201/bad", "CE701/bad_3"),
}
SLOW = pytest.mark.slow
NAMES = [name if name in QUICK else pytest.param(name, marks=SLOW) for name in SAMPLE]
TRACED = {
    "graph_break",
    "skipped_frame",
    "recompile",
    "recompile_limit",
    "specialization",
}


def record(program: str, folder: str) -> None:
    """Runs a program under plain torch.compile with TORCH_TRACE set, nothing else."""
    import torch

    os.environ["TORCH_TRACE"] = folder
    torch._logging._internal.LOG_TRACE_HANDLER = None
    torch._logging._internal._init_logs()  # reads TORCH_TRACE, as at import
    loaded = load(parse(f"{program}:make"))
    told = settings(Path(program))
    fn = loaded.fn
    if not told.get("AS_WRITTEN"):
        fn = torch.compile(fn, **{"backend": "eager", **told.get("COMPILE", {})})
    for index, call in enumerate(loaded.calls):
        if loaded.before_call:
            loaded.before_call(loaded.fn, index)
        try:
            fn(**call) if isinstance(call, dict) else fn(*call)
        except Exception:  # the programs that fail to compile do so here too
            return


def diagnosis(findings: list[Finding]) -> set[tuple[Any, ...]]:
    """What a trace can know: code, kind, place and cause."""
    return {
        (f.code, f.kind, f.file, f.line, f.function, f.owner, f.cause)
        for f in findings
        if f.kind in TRACED or f.code.startswith("CE")
    }


@pytest.mark.parametrize("name", NAMES)
def test_trace_and_live_run_agree(name: str, observe: Any, tmp_path: Path) -> None:
    program = FOLDER / f"{name}.py"
    told = settings(program)
    live = observe(
        f"{program}:make",
        compile=told.get("COMPILE", {}),
        as_written=told.get("AS_WRITTEN", False),
    )
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=record, args=(str(program), str(tmp_path)))
    process.start()
    process.join(60)
    traced = read(parse(f"trace:{tmp_path}"), Options(), lambda text: None)
    expected = diagnosis(rules.check(live))
    assert expected, "the live run found nothing to compare"
    assert diagnosis(rules.check(traced)) == expected
    assert traced.calls is None and traced.compiled_calls is None
    counted = [
        f for f in rules.check(traced) if f.kind in {"graph_break", "skipped_frame"}
    ]
    assert all(f.count is None and f.steps is None for f in counted)


def test_truncated_trace_gives_what_it_holds(observe: Any, tmp_path: Path) -> None:
    program = FOLDER / "GB104" / "bad.py"
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=record, args=(str(program), str(tmp_path)))
    process.start()
    process.join(60)
    [log] = tmp_path.iterdir()
    whole = log.read_text()
    log.write_text(whole[: int(len(whole) * 0.97)])
    found = rules.check(read(parse(f"trace:{tmp_path}"), Options(), lambda text: None))
    assert "GB104" in {f.code for f in found}


def test_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(json.dumps({"a": 1}))
    with pytest.raises(UserError, match=str(tmp_path)):
        read(parse(f"trace:{tmp_path}"), Options(), lambda text: None)
