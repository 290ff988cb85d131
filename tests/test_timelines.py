"""`--trace`: one trace of all processes of a run, in the Trace Event Format."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_runs import bench, row
from forked_commands import forked
from trace_events import assert_valid

from torchproof.cli import main
from torchproof.observe import timeline as recording
from torchproof.records import timeline
from torchproof.report import run_trace

MINUTE_NS = 60 * 10**9
SCRIPT = """
import gc
import time
import torch

@torch.compile(backend="eager")
def step(x):
    y = x.sin()
    print("a graph break")
    return y + 1

for size in (4, 4, 6):
    step(torch.ones(size))
garbage = [[n] for n in range(200_000)]
gc.collect()
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The events of the trace of a check."""
    folder = tmp_path_factory.mktemp("traced")
    with pytest.MonkeyPatch.context() as patch, forked():
        patch.chdir(folder)
        Path("train.py").write_text(SCRIPT)
        line = ("train.py", "--effort", "quick", "--trace", "trace.json", "-q")
        assert main(["check", *line]) in (0, 1)
    events: list[dict[str, Any]] = json.loads((folder / "trace.json").read_text())[
        "traceEvents"
    ]
    return events


def of(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [each for each in events if each.get("cat") == category]


def test_all_processes_share_one_clock(checked: list[dict[str, Any]]) -> None:
    """What the child did lies within the part in which the parent waited for it."""
    assert_valid(checked)
    names = [each["args"].get("name") for each in checked]
    assert "main thread, slot 2" not in names  # nothing overlapped
    [part] = [each for each in of(checked, "part") if each["name"] == "breaks"]
    inside = [*of(checked, "compile"), *of(checked, "call"), *of(checked, "break")]
    assert {each["pid"] for each in inside} == {inside[0]["pid"]} != {part["pid"]}
    for each in inside:
        assert part["ts"] <= each["ts"]
        assert each["ts"] + each.get("dur", 0) <= part["ts"] + part["dur"]


def test_calls_compilations_breaks_and_recompiles_are_shown(
    checked: list[dict[str, Any]],
) -> None:
    calls = of(checked, "call")
    assert [each["name"] for each in calls] == ["call 1", "call 2", "call 3"]
    compiles = of(checked, "compile")
    again = [each for each in compiles if each["name"].startswith("recompile step")]
    assert again and again[0]["args"]["reason"] == "size 0 of x was 4, is 6"
    assert again[0]["args"]["place"].startswith("train.py:")
    assert len(compiles) > len(again)
    within = {
        call["name"]
        for each in compiles
        for call in calls
        if call["ts"] <= each["ts"] <= call["ts"] + call["dur"]
    }
    assert within == {"call 1", "call 3"}
    breaks = of(checked, "break")
    assert {each["args"]["line"] for each in breaks} == {'print("a graph break")'}
    assert {"tracing", "guards"} <= {each["name"] for each in of(checked, "phase")}
    assert any("generation 2" in each["name"] for each in of(checked, "gc"))


# -- the files of processes ------------------------------------------------------------


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[recording.Recorder]:
    with recording.record_timeline(tmp_path) as recorder:
        yield recorder
    assert timeline.VARIABLE not in os.environ


def rendered(folder: Path) -> list[dict[str, Any]]:
    """The events of the trace of what processes left in a folder."""
    document = run_trace.render(bench([row("full", 1.0)]), timeline.read(folder))
    events: list[dict[str, Any]] = json.loads(document)["traceEvents"]
    assert_valid(events)
    return events


KILLED = """
import time
from torchproof.observe import timeline
recorder = timeline.start("killed")
recorder.begin("compile f", "compile")
recorder.begin("C++ compiler", "phase")
print("ready", flush=True)
time.sleep(600)
"""


def test_killed_process_leaves_its_events(
    tmp_path: Path, recorder: recording.Recorder
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        before_ns = time.monotonic_ns()
        child.send_signal(signal.SIGKILL)
    with timeline.file_of(tmp_path, child.pid).open("ab") as file:
        file.write(b'{"do":"end","id":0,"ns":1\n{"do":"en')  # damaged, and cut off
    recording.process_ended(child.pid)
    ended_ns = time.monotonic_ns()
    events = [each for each in rendered(tmp_path) if each["ph"] == "X"]
    killed = [each for each in events if each["pid"] == child.pid]
    assert [each["name"] for each in killed] == ["compile f", "C++ compiler"]
    assert all(each["args"]["unfinished"] for each in killed)
    # They lasted until the process was gone, not until it last wrote.
    process = next(each for each in timeline.read(tmp_path) if each.pid == child.pid)
    assert process.spans[-1].begin_ns < before_ns < process.last_ns < ended_ns


def test_end_of_a_span_ends_those_within(
    tmp_path: Path, recorder: recording.Recorder
) -> None:
    outer = recorder.begin("outer", "phase")
    recorder.begin("dropped by torch", "phase")
    recorder.end(outer)
    recorder.end(outer)  # a second time changes nothing
    [process] = timeline.read(tmp_path)
    assert all(span.end_ns is not None for span in process.spans)
    rendered(tmp_path)


def test_kernels_of_a_profile_are_on_the_same_clock(
    tmp_path: Path, recorder: recording.Recorder
) -> None:
    """A real profile; on a machine without a GPU its operators stand for kernels."""
    import torch

    begin = time.monotonic_ns()
    with torch.profiler.profile() as profiler:
        torch.ones(4).sin()
    end = time.monotonic_ns()
    trace = tmp_path / "profile.json"
    profiler.export_chrome_trace(str(trace))
    document = json.loads(trace.read_text())
    for event in document["traceEvents"]:
        if event.get("cat") == "cpu_op":
            event["cat"] = "kernel"
    trace.write_text(json.dumps(document))
    recording.add_kernels(recorder, trace, (time.time_ns(), time.monotonic_ns()))
    [process] = timeline.read(tmp_path)
    kernels = [each for each in process.spans if each.category == "kernel"]
    assert "aten::sin" in [each.name for each in kernels]
    for each in kernels:
        assert each.end_ns is not None and each.begin_ns <= each.end_ns
        # The clocks are years apart, and a busy machine reads them a moment apart.
        assert begin - MINUTE_NS <= each.begin_ns <= end + MINUTE_NS


def test_timed_loop_shows_its_first_calls_and_counts_all(
    tmp_path: Path, recorder: recording.Recorder
) -> None:
    calls = recording.CallTimes()
    for _ in range(recording.CALLS_KEPT + 5):
        calls.add(0, time.monotonic_ns())
    kept = recording.CALLS_KEPT
    assert calls.write(recorder) == {"calls": kept + 5, "calls_shown": kept}
    assert calls.write(recorder) == {}
    [process] = timeline.read(tmp_path)
    assert len(process.spans) == kept


def test_recording_of_a_cuda_graph_is_a_span(
    tmp_path: Path, recorder: recording.Recorder
) -> None:
    from torchproof.torch_private import recording_times

    hooks = recording.CompilerHooks(recorder)
    with (
        recording_times.step_recordings(hooks._recording),
        recording_times.announced_step(["4x8"]),
    ):
        pass
    [process] = timeline.read(tmp_path)
    [span] = process.spans
    assert (span.category, "4x8" in span.name) == ("cudagraph", True)
