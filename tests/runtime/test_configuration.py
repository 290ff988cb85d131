"""Compiling leaves torch's configuration as it was, whoever compiles at once."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from torch._dynamo import config

import torchproof


def test_two_threads_that_compile_leave_the_configuration_as_it_was() -> None:
    before = config.recompile_limit, config.skip_nnmodule_hook_guards
    x, threads = torch.ones(2), []

    def begins_another(graph: Any, inputs: Any) -> Any:
        other = torchproof.compile(lambda x: x.cos(), backend="eager")
        threads.append(threading.Thread(target=other, args=(x,)))
        threads[0].start()
        time.sleep(0.3)  # by then the other one has begun, if it can
        return graph.forward

    torchproof.compile(lambda x: x.sin(), backend=begins_another)(x)
    threads[0].join()
    assert (config.recompile_limit, config.skip_nnmodule_hook_guards) == before
