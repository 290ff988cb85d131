"""What becomes of CUDA graphs, from what torch says to what a finding says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import cudagraph_trees
from torch._inductor.cudagraph_utils import FunctionID, PlaceholderInfo, WrappedFunction

from torchproof import rules
from torchproof.audit import outcomes
from torchproof.audit.kernels import Kernels, counted
from torchproof.audit.recordings import Recordings
from torchproof.records import Finding, Observation
from torchproof.torch_private import graphs, recordings
from torchproof.torch_private.recordings import Moved, Skip, Split, Turn

HERE = str(Path(__file__))
ON_CUDA = {"kind": "cudagraphs_watched", "cuda": True}


class Stream:
    """Keeps what a watcher writes."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def write(self, kind: str, **values: Any) -> None:
        self.entries.append({"kind": kind, **values})

    def findings(self) -> list[Finding]:
        events = tuple(outcomes.events(self.entries))
        found = rules.check(Observation(events, {}))
        return [each for each in found if each.code.startswith(("CG", "HS"))]


@pytest.fixture(autouse=True)
def quiet_torch() -> Iterator[None]:
    """torch logs each skip as well."""
    torch._dynamo.reset()
    log = logging.getLogger("torch._inductor.cudagraph_utils.__cudagraphs")
    level, log.level = log.level, logging.CRITICAL
    yield
    log.level = level
    torch._dynamo.reset()


def seen(program: Callable[[], object]) -> Stream:
    """A program that runs under the watcher's hooks, as they are set on CUDA."""
    stream = Stream()
    watcher = Recordings(stream.write)
    with graphs.compiled_graphs(watcher._function), recordings.watched(watcher):
        program()
    return stream


def accumulate(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    cache.add_(x)
    return cache * 2


WRITES = accumulate.__code__.co_firstlineno + 1  # the line `cache.add_(x)`
STACK = f'  File "{HERE}", line {WRITES}, in accumulate\n    cache.add_(x)\n'


# -- what torch itself decides -----------------------------------------------------


def test_a_graph_on_the_cpu_is_skipped_with_its_line() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled = torch.compile(double, backend="cudagraphs")
    [found] = seen(lambda: compiled(torch.ones(3))).findings()
    assert (found.code, found.kind, found.severity) == (
        "CG312",
        "cudagraph_skip",
        "high",
    )
    assert found.source is not None and found.source.strip() == "return x * 2"
    assert found.function is not None and found.function.endswith("double")
    assert "device" in found.fix


def test_a_changed_input_is_named_by_the_line_that_changes_it() -> None:
    compiled = torch.compile(accumulate, backend="cudagraphs")
    with torch._dynamo.config.patch(
        cudagraph_backend_keep_input_mutation=True,
        cudagraph_backend_support_input_mutation=False,
    ):
        [found] = seen(lambda: compiled(torch.ones(3), torch.zeros(3))).findings()
    assert found.code == "CG311"
    assert found.source is not None and found.source.strip() == "cache.add_(x)"
    assert "register_buffer" in found.fix and "mark_static_address" in found.fix
    assert any("mutated inputs (1 instances)" in line for line in found.evidence)


def test_skips_are_told_to_torch_as_before() -> None:
    counter = torch._dynamo.utils.counters["inductor"]
    compiled = torch.compile(accumulate, backend="cudagraphs")
    before = counter["cudagraph_skips"]
    stream = seen(lambda: compiled(torch.ones(3), torch.zeros(3)))
    assert counter["cudagraph_skips"] - before == 1
    assert [e["kind"] for e in stream.entries].count("cudagraph_skip") == 1
    torch._dynamo.reset()
    compiled(torch.ones(4), torch.zeros(4))
    assert [e["kind"] for e in stream.entries].count("cudagraph_skip") == 1


def manager(model: Callable[..., Any], mutated: tuple[int, ...]) -> Any:
    """A manager of graph trees, as far as it goes without a GPU, with one function."""
    trees = cudagraph_trees
    made = trees.CUDAGraphTreeManager.__new__(trees.CUDAGraphTreeManager)
    number = FunctionID(0)
    inputs = [
        PlaceholderInfo("x", None, [], None),
        PlaceholderInfo("cache", None, [], STACK),
    ]
    later = {"cudagraph_managed_input_rerecord_limit": 8}
    later["cudagraph_managed_input_rerecord_action"] = "copy"  # type: ignore[assignment]
    known = WrappedFunction.__dataclass_fields__
    wrapped = WrappedFunction(
        model=model,
        static_input_idxs=[],
        id=number,
        constants=(),
        placeholders=inputs,
        mutated_input_idxs=mutated,
        **{name: value for name, value in later.items() if name in known},
    )
    hints: dict[Any, dict[Any, bool]] = {None: {}}
    vars(made).update(
        graph=object(),
        ids_to_funcs={number: wrapped},
        id_to_mode={number: trees.CompilationMode.INFERENCE},
        id_to_compile_id={number: None},
        warned_mutation=set(),
        num_rerecord={None: {number: 0}},
        non_cudagraph_managed_mutation_hint=hints,
        skip_cudagraph=hints,
        has_live_user_visible_output_cloning=False,
        running_forwards_with_pending_backwards=False,
        warmed_up_functions={number},
        roots={number: []},
    )
    made.current_node = None
    return made, number


def test_runs_without_a_graph_are_counted_though_torch_warns_once() -> None:
    def model(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [accumulate(*inputs)]

    trees, number = manager(model, mutated=(1,))

    def program() -> None:
        for _ in range(5):
            trees.run([torch.ones(3), torch.zeros(3)], number)

    stream = seen(program)
    watcher = Recordings(stream.write)
    with recordings.watched(watcher):
        trees.run([torch.ones(3), torch.zeros(3)], number)
    watcher._flush()
    [skip] = [e for e in stream.entries if e["kind"] == "cudagraph_skip"]
    assert "mutated inputs" in skip["reason"]
    [graph] = [e for e in stream.entries if e["kind"] == "cudagraphs"][-1]["graphs"]
    assert graph["turns"] == {"ungraphed": 1}
    [found] = stream.findings()
    assert (found.code, found.line) == ("CG311", WRITES)
    assert any("1 of 1 run went without" in line for line in found.evidence)


# -- what the watcher makes of recordings ------------------------------------------


def turns(*runs: tuple[str, int], **more: Any) -> Stream:
    """A watcher that was told of these runs: how, and the size of the input."""
    stream = Stream()
    watcher = Recordings(stream.write)
    code = [HERE, accumulate.__code__.co_firstlineno, "accumulate"]
    stream.write("cudagraph_function", compile_id="0/0", code=code)
    for how, size in runs:
        watcher.ran(told(how, size, **more))
    watcher.__exit__()
    return stream


def told(how: Any, size: int = 8, **more: Any) -> Turn:
    return Turn(7, "inference", "0/0", (size,), ((size, 32),), how, **more)


def met(sizes: int, replays: int) -> list[tuple[str, int]]:
    once = [("warmed_up", "recorded", *["replayed"] * replays)] * sizes
    return [(how, 64 + 8 * n) for n, each in enumerate(once) for how in each]


def test_one_recording_for_each_size_is_a_storm() -> None:
    [found] = turns(*met(sizes=14, replays=1)).findings()
    assert (found.code, found.kind) == ("CG321", "cudagraph_rerecord")
    assert (found.severity, found.count) == ("high", 14)
    assert found.line == accumulate.__code__.co_firstlineno
    assert "14 of 42 runs were replays" in found.message
    assert all(word in found.fix for word in ("pad", "bucket", "skip_dynamic_graphs"))
    assert "64x32, 72x32" in found.evidence[0] and "and 2 more" in found.evidence[0]


def test_many_sizes_that_are_replayed_are_no_reason_to_stop() -> None:
    [found] = turns(*met(sizes=14, replays=10)).findings()
    assert (found.code, found.severity) == ("CG321", "medium")


@pytest.mark.parametrize(("sizes", "severities"), [(3, []), (4, []), (6, ["low"])])
def test_a_few_sizes_settle(sizes: int, severities: list[str]) -> None:
    found = turns(*met(sizes, replays=2)).findings()
    assert [each.severity for each in found] == severities


def moving(times: int, replays: int) -> Stream:
    """A model whose weight is replaced before recordings."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    stream = Stream()
    watcher = Recordings(stream.write)
    watcher.ran(told("warmed_up"))
    watcher.ran(told("recorded"))
    for _ in range(times):
        model[0].weight = torch.nn.Parameter(torch.ones(2, 2))
        moved = (Moved("primals_1", STACK, model[0].weight.detach()),)
        status = ("static input data pointer changed",)
        watcher.ran(told("recorded", mismatches=status, moved=moved))
        for _ in range(replays):
            watcher.ran(told("replayed"))
    watcher.__exit__()
    return stream


def test_a_weight_that_is_replaced_at_each_step_is_named() -> None:
    [found] = moving(times=4, replays=0).findings()
    assert (found.code, found.severity, found.count) == ("CG322", "high", 4)
    assert "Sequential.0.weight moved" in found.message
    assert "copy_" in found.fix
    assert f"{HERE}:{WRITES}" in found.evidence[0]


def test_a_weight_that_is_replaced_once_is_low() -> None:
    [found] = moving(times=1, replays=3).findings()
    assert (found.code, found.severity) == ("CG322", "low")


def test_recordings_that_follow_other_calls_are_told_when_they_are_many() -> None:
    status = ("expected dead indices before graph are live",)
    twice = [("warmed_up", 8), ("recorded", 8), ("recorded", 8), ("replayed", 8)]
    assert turns(*twice, mismatches=status).findings() == []
    often = [("warmed_up", 8), *[("recorded", 8)] * 5]
    [found] = turns(*often, mismatches=status).findings()
    assert (found.code, found.severity) == ("CG323", "high")
    assert "still alive" in found.cause


def test_a_graph_that_is_recorded_once_is_fine() -> None:
    stream = turns(("warmed_up", 8), ("recorded", 8), *[("replayed", 8)] * 5)
    assert stream.findings() == []


def test_memory_is_counted_for_the_graph_that_the_pool_grew_for() -> None:
    stream = Stream()
    watcher = Recordings(stream.write)
    for graph, held in ((1, 10), (1, 30), (2, 35)):
        turn = Turn(graph, "inference", "0/0", (), (), "recorded")
        turn.pool, turn.pool_bytes = (0, 1), held
        watcher.ran(turn)
    watcher.ran(told("replayed"))
    watcher.__exit__()
    [last] = [e for e in stream.entries if e["kind"] == "cudagraphs"]
    assert [graph["pool_bytes"] for graph in last["graphs"]] == [30, 5, 0]
    counts = outcomes.counts([ON_CUDA, *stream.entries])
    assert counts["cudagraph_pool_bytes"] == 35
    assert (counts["cudagraph_recordings"], counts["cudagraph_replays"]) == (3, 1)
    assert counts["cudagraph_skips"] == 0


def test_without_cuda_nothing_is_counted() -> None:
    stream = Stream()
    with Recordings(stream.write):
        torch.compile(accumulate, backend="cudagraphs")(torch.ones(2), torch.ones(2))
    if not torch.cuda.is_available():
        assert outcomes.events(stream.entries) == []
        assert set(outcomes.counts(stream.entries).values()) == {None}


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
    recordings.PENDING_BACKWARD: "CG316",
    "skipping cudagraph due to function 0 exceeding max re-recording limit (=128) on"
    " cudagraph node None due to static input data pointer changed.": "CG317",
    "skipping cudagraphs due to ['complex memory overlap']": "CG319",
    recordings.NOTHING_TO_CAPTURE: "CG319",
}


@pytest.mark.parametrize("reason", REASONS, ids=lambda text: text[:60])
def test_each_reason_has_its_rule_and_its_place(reason: str) -> None:
    stream = turns()
    Recordings(stream.write).skipped(Skip(reason, "0/0"))
    [found] = stream.findings()
    first = accumulate.__code__.co_firstlineno
    assert found.code == REASONS[reason]
    assert (found.file, found.line) == (
        HERE.removeprefix(f"{Path.cwd()}/"),
        WRITES if "Found from" in reason else first,
    )
    assert found.severity == ("low" if found.code == "CG315" else "high")


def test_one_finding_for_one_reason_at_one_place() -> None:
    stream = turns()
    watcher = Recordings(stream.write)
    for count in (1, 2):
        reason = f"mutated inputs ({count} instances).{QUOTED}"
        watcher.skipped(Skip(reason, f"{count}/0"))
    [found] = stream.findings()
    assert found.count == 2
    assert outcomes.counts([ON_CUDA, *stream.entries])["cudagraph_skips"] == 2


def test_an_operation_that_cuts_the_graph_is_low_and_told_once() -> None:
    stream = turns()
    watcher = Recordings(stream.write)
    for _ in range(2):
        watcher.split(Split("cpu ops", "aten.mul.Tensor", STACK, "0/0"))
    [found] = stream.findings()
    assert (found.code, found.kind, found.severity) == (
        "CG318",
        "cudagraph_skip",
        "low",
    )
    assert found.line == WRITES and "aten.mul.Tensor" in found.cause
    assert "device=" in found.fix


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
    assert counted(trace) == Kernels(all=3, replayed=2)
    entries = [ON_CUDA, {"kind": "kernels", "all": 3, "replayed": 2}]
    assert outcomes.counts(entries)["cudagraph_kernel_share"] == pytest.approx(2 / 3)
