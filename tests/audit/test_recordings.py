"""What the watcher of recordings makes of them, down to the findings."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from watched import FIRST, HERE, STACK, WRITES, Stream

from torchproof.checking.rules.rule import MESSAGE, PROSE
from torchproof.observe.audit import events as audit_events
from torchproof.observe.audit.recordings import Recordings
from torchproof.observe.audit.running import Kernels, count_kernels
from torchproof.process import Followed
from torchproof.records import Remedy, Setting
from torchproof.torch_private import backends, cudagraph_recordings
from torchproof.torch_private.cudagraphs.cudagraph_recordings import (
    GraphRun,
    MovedInput,
    Skip,
    Split,
)

ON_CUDA = {"kind": "cudagraphs_watched", "cuda": True}


# -- what the watcher makes of recordings ------------------------------------------


def turns(*runs: tuple[str, int], **more: Any) -> Stream:
    """A watcher that was told of these runs: how, and the size of the input."""
    stream = Stream()
    watcher = Recordings(stream.write)
    code = [HERE, FIRST, "accumulate"]
    stream.write("cudagraph_function", compile_id="0/0", code=code)
    for how, size in runs:
        watcher.ran(graph_run(how, size, **more))
    watcher.__exit__()
    return stream


def graph_run(how: Any, size: int = 8, **more: Any) -> GraphRun:
    return GraphRun(7, "inference", "0/0", (size,), ((size, 32),), how, **more)


def runs_of_sizes(sizes: int, replays: int) -> list[tuple[str, int]]:
    once = [("warmed_up", "recorded", *["replayed"] * replays)] * sizes
    return [(how, 64 + 8 * n) for n, each in enumerate(once) for how in each]


def test_one_recording_for_each_size_is_a_storm() -> None:
    [found] = turns(*runs_of_sizes(sizes=14, replays=1)).findings()
    assert (found.code, found.kind) == ("CG321", "cudagraph_rerecord")
    assert (found.severity, found.count, found.line) == ("high", 14, FIRST)
    none = Setting("inductor.triton.cudagraph_skip_dynamic_graphs", True)
    assert found.remedy == Remedy("setting", settings=(none,))
    assert none.code == f"torch._inductor.config.{none.name.partition('.')[2]} = True"
    assert "64x32, 72x32" in found.evidence[0] and "2 more" in found.evidence[0]


@pytest.mark.parametrize(
    ("sizes", "replays", "severities"),
    [(1, 2, []), (2, 2, []), (3, 2, ["low"]), (8, 2, ["low"]), (14, 10, ["medium"])],
)
def test_a_few_sizes_or_many_replays_are_no_storm(
    sizes: int, replays: int, severities: list[str]
) -> None:
    found = turns(*runs_of_sizes(sizes, replays)).findings()
    assert [each.severity for each in found] == severities


def moving(times: int, replays: int) -> Stream:
    """A model whose weight is replaced before recordings."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    stream = Stream()
    watcher = Recordings(stream.write)
    watcher.ran(graph_run("warmed_up"))
    watcher.ran(graph_run("recorded"))
    for _ in range(times):
        model[0].weight = torch.nn.Parameter(torch.ones(2, 2))
        moved = (MovedInput("primals_1", STACK, model[0].weight.data_ptr()),)
        status = ("static input data pointer changed",)
        watcher.ran(graph_run("recorded", mismatches=status, moved=moved))
        for _ in range(replays):
            watcher.ran(graph_run("replayed"))
    watcher.__exit__()
    return stream


def test_a_weight_that_is_replaced_is_named() -> None:
    [found] = moving(times=4, replays=0).findings()
    assert (found.code, found.severity, found.count) == ("CG322", "high", 4)
    assert "Sequential.0.weight" in found.message
    assert f"{HERE}:{WRITES}" in found.evidence[0]
    [found] = moving(times=1, replays=3).findings()
    assert (found.code, found.severity) == ("CG322", "low")


def test_many_recordings_after_other_calls_are_found() -> None:
    status = ("expected dead indices before graph are live",)
    twice = [("warmed_up", 8), ("recorded", 8), ("recorded", 8), ("replayed", 8)]
    assert turns(*twice, mismatches=status).findings() == []
    often = [("warmed_up", 8), *[("recorded", 8)] * 5]
    [found] = turns(*often, mismatches=status).findings()
    assert (found.code, found.severity) == ("CG323", "high")
    assert "alive" in found.cause
    settled = [*often, *[("replayed", 8)] * 5]
    [found] = turns(*settled, mismatches=status).findings()
    assert (found.code, found.severity) == ("CG323", "low")


def test_a_graph_that_stays_in_warm_up_is_found() -> None:
    [found] = turns(*[("warmed_up", 8)] * 5).findings()
    assert (found.code, found.kind) == ("CG324", "cudagraph_skip")
    assert found.severity == "high" and "5 runs" in found.message
    assert turns(*[("warmed_up", size) for size in (8, 16)]).findings() == []
    skipped = turns(*[("warmed_up", 8)] * 5)
    Recordings(skipped.write).skipped(
        Skip(cudagraph_recordings.PENDING_BACKWARD, "0/0")
    )
    assert [each.code for each in skipped.findings()] == ["CG316"]


def test_memory_is_counted_for_the_graph_that_the_pool_grew_for() -> None:
    stream = Stream()
    watcher = Recordings(stream.write)
    for graph, held in ((1, 10), (1, 30), (2, 35)):
        turn = GraphRun(graph, "inference", "0/0", (), (), "recorded")
        turn.pool, turn.pool_bytes = (0, 1), held
        watcher.ran(turn)
    watcher.ran(graph_run("replayed"))
    watcher.__exit__()
    [last] = [e for e in stream.entries if e["kind"] == "cudagraphs"]
    assert [graph["pool_bytes"] for graph in last["graphs"]] == [30, 5, 0]
    counts = audit_events.counts(Followed([ON_CUDA, *stream.entries]))
    assert counts["cudagraph_pool_bytes"] == 35
    assert (counts["cudagraph_recordings"], counts["cudagraph_replays"]) == (3, 1)
    assert counts["cudagraph_skips"] == 0


def test_without_cuda_nothing_is_counted() -> None:
    entries = [{"kind": "cudagraphs_watched", "cuda": False}]
    assert audit_events.events(Followed(entries)) == ()
    assert set(audit_events.counts(Followed(entries)).values()) == {None}
    assert (
        audit_events.counts(Followed(entries)).keys()
        == audit_events.counts(Followed([ON_CUDA])).keys()
    )


# -- reasons -----------------------------------------------------------------------

QUOTED = f" Found from : \n{STACK}"
REASONS = {
    "skipping cudagraphs due to mutated inputs (2 instances)." + QUOTED: "CG311",
    "input storage mutation (1 instances)." + QUOTED: "CG311",
    "skipping cudagraphs due to skipping cudagraphs due to cpu device (arg0_1)."
    + QUOTED: "CG312",
    "skipping cudagraphs due to multiple devices: cuda:0, cuda:1": "CG313",
    "disabling cudagraphs due to incompatible op aten.nonzero.default"
    + QUOTED: "CG314",
    "control flow operator: torch.cond." + QUOTED: "CG314",
    "graph with symbolic shapes inputs and config.triton"
    ".cudagraph_skip_dynamic_graphs=True." + QUOTED: "CG315",
    cudagraph_recordings.PENDING_BACKWARD: "CG316",
    "skipping cudagraph due to function 0 exceeding max re-recording limit (=128) on"
    " cudagraph node None due to static input data pointer changed.": "CG317",
    "skipping cudagraphs due to ['complex memory overlap']": "CG319",
    cudagraph_recordings.NOTHING_TO_CAPTURE: "CG319",
}


@pytest.mark.parametrize("reason", REASONS, ids=lambda text: text[:60])
def test_each_reason_has_its_rule_and_its_place(reason: str) -> None:
    stream = turns()
    Recordings(stream.write).skipped(Skip(reason, "0/0"))
    [found] = stream.findings()
    assert found.code == REASONS[reason]
    assert (found.file, found.line) == (
        HERE.removeprefix(f"{Path.cwd()}/"),
        WRITES if "Found from" in reason else FIRST,
    )
    assert found.severity == ("low" if found.code == "CG315" else "high")
    assert len(found.message) <= MESSAGE and len(found.fix) <= PROSE
    assert "..." not in found.fix


def test_one_finding_for_one_reason_at_one_place() -> None:
    stream = turns()
    watcher = Recordings(stream.write)
    for count in (1, 2):
        reason = f"mutated inputs ({count} instances).{QUOTED}"
        watcher.skipped(Skip(reason, f"{count}/0"))
    [found] = stream.findings()
    assert found.count == 2
    assert (
        audit_events.counts(Followed([ON_CUDA, *stream.entries]))["cudagraph_skips"]
        == 2
    )


def test_an_operation_that_cuts_the_graph_is_low_unless_all_of_it_is_out() -> None:
    stream = turns()
    watcher = Recordings(stream.write)
    for reason in ("cpu ops", "DeviceCopy ops", "cpu ops"):
        watcher.split(Split(reason, "aten.mul.Tensor", STACK, "0/0"))
    [found] = stream.findings()
    assert (found.code, found.severity, found.line) == ("CG318", "low", WRITES)
    assert (found.kind, found.count) == ("cudagraph_skip", 2)
    assert found.cause == "cpu ops, DeviceCopy ops: aten.mul.Tensor"
    watcher.skipped(Skip(f"control flow operator: torch.cond.{QUOTED}", "0/0"))
    assert [each.code for each in stream.findings()] == ["CG314"]


def test_what_torch_compiled_of_its_own_is_placed_where_it_is_called() -> None:
    generated = Path(backends.cache_folder()) / "xy" / "cxyz.py"
    code = compile("run()", str(generated), "exec")

    def call(watcher: Recordings) -> None:
        run = functools.partial(watcher.ran, graph_run("recorded"))
        exec(code, {"run": run})  # here

    stream = Stream()
    own = [torch.nn.Sequential.forward.__code__.co_filename, 300, "inner"]
    stream.write("cudagraph_function", compile_id="0/0", code=own)
    watcher = Recordings(stream.write)
    for _ in range(5):
        call(watcher)
    watcher.__exit__()
    [found] = stream.findings()
    assert found.code == "CG323"
    assert found.source is not None and found.source.endswith("# here")


# -- kernels -----------------------------------------------------------------------


def test_kernels_are_those_of_graphs_by_the_call_that_launched_them() -> None:
    def event(category: str, name: str, number: int) -> dict[str, Any]:
        return {"cat": category, "name": name, "args": {"correlation": number}}

    trace = [
        event("cuda_runtime", "cudaGraphLaunch", 5),
        event("cuda_runtime", "cudaLaunchKernel", 6),
        event("kernel", "triton_poi_fused_0", 5),
        event("kernel", "cutlass_gemm", 5),
        event("kernel", "elementwise", 6),
        event("gpu_memcpy", "Memcpy HtoD", 7),
        {"ph": "M", "name": "process_name"},
    ]
    assert count_kernels(trace) == Kernels(all=3, replayed=2)
    entries = [ON_CUDA, {"kind": "kernels", "all": 3, "replayed": 2}]
    assert audit_events.counts(Followed(entries))[
        "cudagraph_kernel_share"
    ] == pytest.approx(2 / 3)
