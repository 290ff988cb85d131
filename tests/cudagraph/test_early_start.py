"""What `torchproof.graph` starts before there is a graph to compile."""

import functools
import gc
import os
import threading
import time
import warnings

import pytest
import torch
from torch import nn

import torchproof
from torchproof.records import collector_paused
from torchproof.runtime.cudagraph import partial_trace
from torchproof.torch_private import early_start, remote_graphs, thread_state


def test_workers_start_once_and_for_strategies_that_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []
    monkeypatch.setattr(early_start, "start_workers", lambda: started.append("workers"))
    monkeypatch.setattr(early_start, "compute_keys", lambda: started.append("key"))
    begin = functools.cache(early_start.begin.__wrapped__)
    monkeypatch.setattr(early_start, "begin", begin)
    for strategy in ("eager", "full", "full"):
        torchproof.graph(nn.Linear(2, 2), strategy=strategy)
        assert started == (["workers", "key"] if strategy == "full" else [])


@pytest.mark.usefixtures("fresh_dynamo")
def test_loading_the_compiler_changes_nothing_for_callers() -> None:
    """A caller draws numbers meanwhile, and collects garbage afterwards."""
    drawn = []
    torch.manual_seed(1)
    loading = partial_trace.Loading(remote_graphs.load_tracer)
    while not loading.is_done:
        assert thread_state.another_thread_compiles()
        drawn.append(torch.rand(()))
        time.sleep(0.005)
    assert not thread_state.another_thread_compiles() and gc.isenabled()
    torch.manual_seed(1)
    assert torch.equal(torch.stack(drawn), torch.rand(len(drawn)))


def test_a_fork_does_not_wait_for_the_loading_thread() -> None:
    end = threading.Event()
    loading = partial_trace.Loading(end.wait)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a fork beside a thread
            child = os.fork()
        if not child:
            is_free = loading.is_done and not thread_state.another_thread_compiles()
            os._exit(0 if is_free else 1)
        assert os.waitpid(child, 0)[1] == 0 and not loading.is_done
    finally:
        end.set()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before_after_a_pause(enabled: bool) -> None:
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ImportError), collector_paused():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
