"""The hooks on graph trees, as far as torch's own code runs without a GPU."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import cudagraph_trees, output_code, scheduler
from torch._inductor.cudagraph_utils import (
    BoxedDeviceIndex,
    FunctionID,
    PlaceholderInfo,
    WrappedFunction,
)
from torch._inductor.utils import BoxedBool
from torch._inductor.virtualized import V
from watched import STACK, WRITES, accumulate, seen

from torchproof.torch_private import cudagraph_recordings


@pytest.fixture(autouse=True)
def quiet_torch() -> Iterator[None]:
    """torch logs each skip as well."""
    torch._dynamo.reset()
    log = logging.getLogger("torch._inductor.cudagraph_utils.__cudagraphs")
    level, log.level = log.level, logging.CRITICAL
    yield
    log.level = level
    torch._dynamo.reset()


def test_a_skipped_graph_is_found_with_its_line() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled = torch.compile(double, backend="cudagraphs")
    [found] = seen(lambda: compiled(torch.ones(3))).findings()
    assert (found.code, found.kind) == ("CG312", "cudagraph_skip")
    assert found.source is not None and found.source.strip() == "return x * 2"
    assert found.severity == "high" and (found.function or "").endswith("double")
    compiled = torch.compile(accumulate, backend="cudagraphs")
    with torch._dynamo.config.patch(
        cudagraph_backend_keep_input_mutation=True,
        cudagraph_backend_support_input_mutation=False,
    ):
        [found] = seen(lambda: compiled(torch.ones(3), torch.zeros(3))).findings()
    assert found.code == "CG311"
    assert found.source is not None and found.source.strip() == "cache.add_(x)"


def test_torch_counts_skips_as_before() -> None:
    counter = torch._dynamo.utils.counters["inductor"]
    compiled = torch.compile(accumulate, backend="cudagraphs")
    before = counter["cudagraph_skips"]
    stream = seen(lambda: compiled(torch.ones(3), torch.zeros(3)))
    assert counter["cudagraph_skips"] - before == 1
    assert [e["kind"] for e in stream.entries].count("cudagraph_skip") == 1
    torch._dynamo.reset()
    compiled(torch.ones(4), torch.zeros(4))
    assert [e["kind"] for e in stream.entries].count("cudagraph_skip") == 1


def manager(model: Callable[..., Any], **facts: Any) -> tuple[Any, FunctionID]:
    """A manager of graph trees, as far as it goes without a GPU, with one function."""
    trees = cudagraph_trees
    made = trees.CUDAGraphTreeManager.__new__(trees.CUDAGraphTreeManager)
    number = FunctionID(0)
    inputs = [
        PlaceholderInfo("x", None, [], None),
        PlaceholderInfo("cache", STACK, [], STACK),
    ]
    fields: dict[str, Any] = {
        "model": model,
        "static_input_idxs": [],
        "id": number,
        "constants": (),
        "placeholders": inputs,
        "mutated_input_idxs": (),
        "cudagraph_managed_input_rerecord_limit": 8,
        "cudagraph_managed_input_rerecord_action": "copy",
        **facts,
    }
    known = WrappedFunction.__dataclass_fields__
    wrapped = WrappedFunction(**{k: v for k, v in fields.items() if k in known})
    hints: dict[Any, dict[Any, bool]] = {None: {}}
    vars(made).update(
        graph=object(),
        ids_to_funcs={number: wrapped},
        id_to_mode={number: trees.CompilationMode.INFERENCE},
        id_to_compile_id={number: None},
        warned_mutation=set(),
        warned_functions=set(),
        num_rerecord={None: {number: 0}},
        non_cudagraph_managed_mutation_hint=hints,
        skip_cudagraph=hints,
        has_live_user_visible_output_cloning=False,
        running_forwards_with_pending_backwards=False,
        warmed_up_functions={number},
        roots={number: []},
        cuda_graphs_thread_pool=(0, 1),
        current_gen=-1,
        debug_fail_counter=0,
    )
    made.current_node = None
    return made, number


def doubled(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [inputs[1] * 2]


def test_runs_without_a_graph_are_counted_though_torch_warns_once() -> None:
    trees, number = manager(doubled, mutated_input_idxs=(1,))

    def program() -> None:
        for _ in range(5):
            trees.run([torch.ones(3), torch.zeros(3)], number)

    stream = seen(program)
    [skip] = [e for e in stream.entries if e["kind"] == "cudagraph_skip"]
    assert "mutated inputs" in skip["events"][0]["reason"]
    [graph] = stream.entries[-1]["graphs"]
    assert graph["turns"] == {"ungraphed": 5}
    [found] = stream.findings()
    assert (found.code, found.line) == ("CG311", WRITES)
    assert any("5 of 5 runs" in line for line in found.evidence)


def recorded_with(cache: torch.Tensor, trees: Any, number: FunctionID) -> Any:
    """A recording that knows the second input at one address."""
    node = cudagraph_trees.CUDAGraphNode.__new__(cudagraph_trees.CUDAGraphNode)
    vars(node).update(
        wrapped_function=trees.ids_to_funcs[number],
        static_input_data_ptrs=[None, cache.data_ptr()],
        cudagraph_managed_idxs=[],
        static_input_idxs=[1],
        tensor_static_input_idxs=[1],
        non_managed_static_input_idxs=[1],
        expected_dead_indices_before_graph=[],
        expected_dead_indices_after_graph=[],
        path_weakrefs=[],
        rerecord_if_static_inputs_change=True,
        liveness_check_state=None,
    )
    return node


def same_places(tensors: list[Any], known: list[Any], indices: list[int]) -> bool:
    """What torch has in C++, and in builds for CUDA only."""
    return all(tensors[i].data_ptr() == known[i] for i in indices)


def test_an_input_that_moved_is_named_when_it_is_recorded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trees, number = manager(doubled, static_input_idxs=[1])
    owner = cudagraph_trees.CUDAGraphTreeManager
    model = torch.nn.Module()
    model.register_buffer("cache", torch.zeros(3))
    monkeypatch.setattr(owner, "record_function", lambda self, inputs, id_: None)
    monkeypatch.setattr(owner, "execute_node", lambda self, node, inputs: None)
    compare = "_tensors_data_ptrs_at_indices_equal"
    monkeypatch.setattr(torch._C, compare, same_places, raising=False)
    held = [{"total_size": 512}]
    monkeypatch.setattr(cudagraph_trees, "get_cudagraph_segments", lambda pool: held)

    def run() -> None:
        trees.run([torch.ones(3), model.cache], number)

    caches = []  # no later one gets the address of an earlier one

    def program() -> None:
        run()
        for _ in range(3):
            trees.roots[number].append(recorded_with(model.cache, trees, number))
            run()
            caches.append(model.cache)
            model.cache = torch.zeros(3)
            run()

    stream = seen(program)
    [graph] = stream.entries[-1]["graphs"]
    assert graph["turns"] == {"recorded": 4, "replayed": 3}
    assert graph["again"] == {"moved": 3}
    assert graph["moved"] == ["Module.cache"]
    assert graph["pool_bytes"] == 512
    [found] = stream.findings()
    assert found.code == "CG322" and "Module.cache" in found.message
    assert f":{WRITES}" in found.evidence[0]


def test_a_graph_that_cannot_leave_warm_up_is_a_skip() -> None:
    trees, number = manager(doubled)
    first = SimpleNamespace(wrapped_function=SimpleNamespace(id=number), parent=None)
    path = [first]
    for _ in range(2):
        node = SimpleNamespace(wrapped_function=first.wrapped_function, parent=path[-1])
        path.append(node)
    trees._current_node = SimpleNamespace(**vars(path[-1]), _path_from_root=path)

    def program() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(2):
                trees.check_warn_on_unable_to_start_executing(number)

    [skip] = seen(program).entries
    assert skip["events"][0]["reason"] == cudagraph_recordings.PENDING_BACKWARD


@pytest.mark.parametrize("failed", [["complex memory overlap"], []])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_graph_that_is_dropped_without_a_word_is_a_skip(
    failed: list[str], device: str
) -> None:
    graph = SimpleNamespace(
        cudagraph_info=SimpleNamespace(cudagraph_fail_reasons=failed),
        partition_maps=[],
        current_callable=doubled,
        fx_kwargs={"is_backward": False},
        device_types={device},
    )

    def program() -> None:
        output_code.cudagraph_partition_post_compile(
            [], graph, BoxedBool(True), {}, BoxedDeviceIndex(None)
        )

    skips = [event for entry in seen(program).entries for event in entry["events"]]
    reasons = [event["reason"] for event in skips]
    reason = failed[0] if failed else cudagraph_recordings.NOTHING_TO_CAPTURE
    assert reasons == ([reason] if device == "cuda" else [])


class Traced:
    """A node as the compiler adds it to a graph."""

    def __init__(self, target: str) -> None:
        self.target, self.stack_trace = target, ""
        self.users: list[Traced] = []


@pytest.mark.parametrize("device_types", [{"cuda"}, {"cpu"}])
def test_an_operation_on_the_cpu_is_left_out_of_a_graph_on_cuda(
    device_types: set[str],
) -> None:
    use, copy, added = (Traced(name) for name in ("mul", "device_put", "aten.cat"))
    added.users, copy.users, use.stack_trace = [copy], [added, use], STACK
    node = SimpleNamespace(
        node=SimpleNamespace(origins=[added]),
        is_gpu=lambda: False,
        get_device=lambda: torch.device("cpu"),
    )

    def program() -> None:
        with (
            torch._inductor.config.patch({"triton.cudagraphs": True}),
            V.set_graph_handler(SimpleNamespace(device_types=device_types)),
        ):
            for _ in range(2):
                own = SimpleNamespace()
                assert scheduler.Scheduler.should_partition(own, node) == "cpu ops"

    found = seen(program).findings()
    wanted = [("CG318", WRITES)] if "cuda" in device_types else []
    assert [(each.code, each.line) for each in found] == wanted
    assert all("cpu ops: aten.cat" in each.cause for each in found)
