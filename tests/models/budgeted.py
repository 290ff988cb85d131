"""Tests with compile budgets, kept and broken: test_pytest_plugin.py runs them."""

import gc
import time
import unittest

import pytest
import torch
from torch import nn
from torch._dynamo import convert_frame, eval_frame, output_graph

ORIGINAL = (
    torch.compile,
    convert_frame.CatchErrorsWrapper.__call__,
    eval_frame.OptimizeContext.__init__,
    eval_frame.OptimizedModule.__getattr__,
    output_graph.OutputGraph._call_user_compiler,
    torch._TorchCompileInductorWrapper.__call__,
)
budget = pytest.mark.compile_budget


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        if y.sum() > 100:
            y = y + 1
        return y


def clean(x):
    return x * 2


@torch.compile(backend="eager")
def early(x, n):
    return x * n


def compiled(fn):
    return torch.compile(fn, backend="eager")


X, SHARED, USED = torch.ones(4, 8), Net(), []


@budget(graph_breaks=0, high=0)
def test_over():
    model = compiled(SHARED)
    for _ in range(3):
        assert model(X).shape == (4, 8)


def test_everything_is_put_back():
    now = (
        torch.compile,
        convert_frame.CatchErrorsWrapper.__call__,
        eval_frame.OptimizeContext.__init__,
        eval_frame.OptimizedModule.__getattr__,
        output_graph.OutputGraph._call_user_compiler,
        torch._TorchCompileInductorWrapper.__call__,
    )
    assert now == ORIGINAL
    assert SHARED._compiled_call_impl is None


@budget(graph_breaks=0, recompiles=0, graphs=1, skipped_frames=0, findings=0)
def test_within():
    assert torch.equal(compiled(clean)(X), X * 2)


def note(gm, inputs):
    USED.append(gm)
    return gm.forward


NOTED = torch.compile(clean, backend=note)


@pytest.mark.parametrize("number", [1, 2])
@budget(graphs=1)
def test_is_compiled_afresh(number):
    NOTED(X)
    assert len(USED) == number


def test_leaves_no_compiled_code_behind():
    before = len(USED)
    NOTED(X)
    assert len(USED) == before + 1


@budget(recompiles=0)
def test_compiled_at_import():
    early(X, 2)
    early(X, 3)


@budget(graph_breaks=0)
def test_nothing():
    clean(X)


@budget(graph_breaks=0, high=0, compiled=False)
def test_nothing_is_fine():
    clean(X)


@budget(graph_breaks=0)
def test_own_failure():
    compiled(Net())(X)
    assert 1 == 2, "its own words"


@budget(graph_breaks=0)
class TestClass:
    @pytest.fixture
    def model(self):
        return compiled(Net())

    def test_fixture_compiles(self, model):
        model(X)

    @budget(graph_breaks=1, graphs=9)
    def test_nearest_wins(self, model):
        model(X)

    @budget(graph_breaks=None, graphs=9)
    def test_limit_lifted(self, model):
        model(X)


@budget(high=0, findings=0)
def test_meant_so():
    def meant(x):
        y = x * 2
        if y.sum() > 100:  # torchproof: ignore[GB102]
            y = y + 1
        return y

    compiled(meant)(X)


@pytest.fixture(scope="module")
def shared():
    return compiled(clean)


@budget(graphs=1)
def test_shared(shared):
    shared(X)


def test_shared_is_watched_no_more(shared):
    owner = eval_frame.OptimizeContext
    found = [c for c in gc.get_referrers(owner) if type(c) is owner]
    hooks = [hook for context in found for hook in context.enter_exit_hooks]
    assert found and "torchproof" not in repr(hooks)
    shared(X)


@budget(graphs=1)
def test_shared_again(shared):
    shared(X)


class TestOfUnittest(unittest.TestCase):
    @budget(graph_breaks=0)
    def test_unittest(self):
        compiled(Net())(X)


@pytest.mark.xfail(strict=True)
@budget(graph_breaks=0)
def test_expected():
    compiled(Net())(X)


@pytest.mark.skip(reason="nobody watches")
@budget(graph_breaks=0)
def test_skipped():
    raise AssertionError


@budget(graph_breaks=0, compiled=False)
def test_errors_stay_errors():
    def broken(gm, inputs):
        raise ZeroDivisionError("in the backend")

    with pytest.raises(Exception, match="in the backend"):
        torch.compile(clean, backend=broken)(X)


@budget(cudagraph_skips=0)
def test_not_measured():
    compiled(clean)(X)


@budget(graph_brakes=0)
def test_typo():
    raise AssertionError


def test_check(compile_check):
    run = compile_check(clean, [(X,), {"x": X}])
    assert run.counts["calls"] == 2 and not run.findings
    assert compile_check(early, [(X, 1)]).counts["graphs"] == 1
    run = compile_check(SHARED, [(X,)] * 2, train=True)
    assert SHARED.linear.weight.grad is not None
    assert run.counts["graph_breaks"] == 0


def test_bad_call(compile_check):
    compile_check(clean, [X])


def test_no_calls(compile_check):
    compile_check(clean)


def test_used_in_vain(compile_check):
    compile_check(early, [(X, 1)], dynamic=True)


# -- latency ---------------------------------------------------------------------------

latency = pytest.mark.latency_budget
QUICK = {"rate": 200, "requests": 20}


def pause(seconds):
    time.sleep(seconds)


def refuse(seconds):
    raise ValueError("no such request")


@latency(p50_ms=5000, **QUICK)
def test_in_time(latency_check):
    run = latency_check(pause, [(0.0,), (0.001,)])
    (result,) = run.load_test.results
    assert result.answered == 20 and set(result.requests.call) == {0, 1}
    assert run.load_test.seed == 0


@latency(p50_ms=0.5, **QUICK)
def test_too_slow(latency_check):
    latency_check(pause, [(0.002,)])


@latency(p50_ms=5000, **QUICK)
def test_serves_nothing():
    pass


@latency(p50_ms=5000, cold=True, **QUICK)
def test_requests_fail(latency_check):
    latency_check(refuse, [(0.0,)])


@latency(p99_ms=50, rate=20, requests=100)
def test_too_few_requests():
    pass


@latency(p99_ms=50)
def test_no_rate():
    pass


@latency(p99=50, rate=20)
def test_misspelt():
    pass


def test_load_without_a_budget(latency_check):
    run = latency_check(pause, [(0.0,)], rate=500, requests=10)
    assert run.load_test.objective is None
    with pytest.raises(pytest.fail.Exception):
        latency_check(pause, [], rate=500, requests=10)
