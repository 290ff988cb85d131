"""Every private hook torchproof uses, tried on the installed torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchproof.torch_private import hooks


def test_installed_torch_offers_every_hook() -> None:
    assert hooks.missing() == []


def test_a_hook_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {"sky hooks": ("torch._dynamo.eval_frame:no_such_thing", "torch._nowhere:x")}
    monkeypatch.setattr(hooks, "PROBES", gone)
    first, second = hooks.missing()
    assert "sky hooks" in first and "no_such_thing" in first
    assert "torch._nowhere" in second


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


def test_trace_records_reach_a_handler_and_stop_afterwards() -> None:
    seen: list[dict[str, Any]] = []
    with hooks.trace_records(lambda metadata, payload: seen.append(metadata)):
        torch.compile(broken, backend="eager")(torch.ones(2))
    names = {m["artifact"]["name"] for m in seen if "artifact" in m}
    assert "dynamo_graph_break_reason" in names
    assert any("compilation_metrics" in m for m in seen)
    before = len(seen)
    torch._dynamo.reset()
    torch.compile(broken, backend="eager")(torch.ones(2))
    assert len(seen) == before


def test_graphs_are_wrapped_and_counted_for_any_backend() -> None:
    runs: list[str] = []

    def wrap(output_graph: Any, compiled: Any) -> Any:
        name = hooks.compile_id_of(output_graph)

        def counted(*args: Any) -> Any:
            runs.append(name)
            return compiled(*args)

        return counted

    with hooks.graph_callables(wrap):
        fn = torch.compile(broken, backend="aot_eager")
        fn(torch.ones(2))
        fn(torch.ones(2))
    assert len(runs) == 4 and len(set(runs)) == 2


def test_calls_of_a_compiled_function_begin_and_end() -> None:
    order: list[str] = []

    def enter() -> Any:
        order.append("begin")
        return lambda: order.append("end")

    with hooks.compiled_contexts(lambda context: enter):
        fn = torch.compile(lambda x: x + 1, backend="eager")
    fn(torch.ones(2))
    fn(torch.ones(2))
    assert order == ["begin", "end", "begin", "end"]


def test_skipped_frame_is_asked_about_again() -> None:
    asked: list[str] = []

    def wrap(convert: Any, conversion: hooks.FrameRequest) -> Any:
        if conversion.frame.f_code is not broken.__code__:
            return convert()
        assert not conversion.fullgraph and not conversion.is_recompile
        asked.append(conversion.frame.f_code.co_name)
        return hooks.skip_once()

    with hooks.frame_callbacks(wrap):
        fn = torch.compile(broken, backend="eager")
        for _ in range(3):
            assert torch.equal(fn(torch.ones(2)), torch.full((2,), 3.0))
    assert asked == ["broken"] * 3


def test_inductor_is_stopped_before_it_generates_code() -> None:
    torch._dynamo.utils.counters.clear()
    with hooks.no_code_generation():
        fn = torch.compile(lambda x: x.sin() + 1, mode="max-autotune-no-cudagraphs")
        assert torch.equal(fn(torch.zeros(3)), torch.ones(3))
    assert torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"] == 0


def test_files_that_torch_has_named_before_are_told_again() -> None:
    def told() -> set[str]:
        found: set[str] = set()

        def receive(metadata: dict[str, Any], payload: str) -> None:
            if "str" in metadata:
                found.add(metadata["str"][0])

        with hooks.trace_records(receive):
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        return found

    assert __file__ in told() and __file__ in told()


def test_methods_taken_from_the_original_are_seen() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

        def encode(self) -> str:
            return "code"

    taken: list[str] = []

    def wrap(module: Any, name: str, value: Any) -> Any:
        taken.append(name)
        return value

    with hooks.module_methods(wrap):
        assert torch.compile(Net(), backend="eager").encode() == "code"
    assert "encode" in taken


def test_a_method_of_a_compiled_module_is_still_traced() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    net = torch.compile(Net(), backend="eager")
    with hooks.module_methods(lambda module, name, value: value):
        fn = torch.compile(lambda x: net.encode(x), backend="eager", fullgraph=True)
        assert torch.equal(fn(torch.ones(2)), torch.full((2,), 2.0))


def test_inlined_functions_are_seen() -> None:
    codes: list[str] = []
    with hooks.inlined_code(lambda code: codes.append(code.co_name)):
        torch.compile(lambda x: helper(x), backend="eager")(torch.ones(2))
    assert "helper" in codes


def helper(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_marks_stance_and_compiled_state_are_read() -> None:
    x = torch.ones(4, 2)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.maybe_mark_dynamic(x, 1)
    assert hooks.marked_dimensions(x) == [0, 1]
    assert hooks.marked_dimensions(torch.ones(2)) == []
    assert hooks.stance() == "default"
    with torch.compiler.set_stance("force_eager"):
        assert hooks.stance() == "force_eager"
    module = torch.nn.Linear(1, 1)
    assert not hooks.is_compiled(module)
    assert hooks.is_compiled(torch.compile(module))
    assert hooks.is_compiled(torch.compile(helper))
    module.compile()
    assert hooks.is_compiled(module)


def test_every_patch_is_taken_back() -> None:
    from torch._dynamo import convert_frame, eval_frame, output_graph

    before = (
        eval_frame.OptimizeContext.__init__,
        convert_frame.CatchErrorsWrapper.__call__,
        output_graph.OutputGraph._call_user_compiler,
        torch._TorchCompileInductorWrapper.__call__,
    )
    with (
        pytest.raises(ValueError),
        hooks.no_code_generation(),
        hooks.compiled_contexts(lambda context: None),
    ):
        raise ValueError
    after = (
        eval_frame.OptimizeContext.__init__,
        convert_frame.CatchErrorsWrapper.__call__,
        output_graph.OutputGraph._call_user_compiler,
        torch._TorchCompileInductorWrapper.__call__,
    )
    assert before == after
