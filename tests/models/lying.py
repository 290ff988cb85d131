"""Targets and backends that would make a careless benchmark lie."""

import math
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import torch._inductor.compile_fx
import torch._inductor.config
from torch._dynamo import register_backend
from torch._dynamo.backends.common import aot_autograd
from functorch.compile import make_boxed_func

import torchproof.measure.profiling

# -- backends that are quick, and right or wrong --------------------------------------

ADDITIONS = 100


def adding():
    """Slow in eager; a backend that knows its sum is quick."""

    def step(x):
        for _ in range(ADDITIONS):
            x = x + 1
        return x

    return step, [(torch.arange(64.0),)]


@register_backend
def right(graph, inputs):
    return lambda x: (x + ADDITIONS,)


@register_backend
def one_wrong(graph, inputs):
    def run(x):
        y = x + ADDITIONS
        y[7] += 0.01
        return (y,)

    return run


@register_backend
def turns_wrong(graph, inputs):
    """Right in the first passes, which the reference is compared with."""
    calls = []

    def run(x):
        calls.append(None)
        return (x + ADDITIONS if len(calls) < 4 else torch.zeros_like(x),)

    return run


@register_backend
def raises(graph, inputs):
    raise ValueError("no such kernel")


@register_backend
def killed(graph, inputs):
    os.kill(os.getpid(), 9)


@register_backend
def hangs(graph, inputs):
    time.sleep(600)


# -- gradients ------------------------------------------------------------------------


def linear():
    return torch.nn.Linear(8, 8), [(torch.randn(4, 8),)]


def _plain(graph, inputs):
    return make_boxed_func(graph.forward)


def _doubled(graph, inputs):
    return make_boxed_func(
        lambda *values: [v if v is None else 2 * v for v in graph.forward(*values)]
    )


wrong_gradients = register_backend(
    aot_autograd(fw_compiler=_plain, bw_compiler=_doubled), name="wrong_gradients"
)

# -- time -----------------------------------------------------------------------------

_called = []


@torch.compiler.disable
def _slow_at_first():
    if not _called:
        _called.append(True)
        time.sleep(1)


def slow_first_call():
    def step(x):
        _slow_at_first()
        return x + 1

    return step, [(torch.ones(8),)]


class _Throttled:
    """The clock of a machine that gets slower: a step takes ever longer on it."""

    def __init__(self):
        self.now_ns = 0.0
        self.begun_s = Path(os.environ["LYING_BEGUN"]).stat().st_mtime

    def step(self):
        # Far below a millisecond, so that the session takes all rounds.
        self.now_ns += math.exp((time.time() - self.begun_s) / 4 - 60)


def throttled():
    clock = _Throttled()
    torchproof.measure.profiling.time = SimpleNamespace(
        perf_counter=time.perf_counter,
        perf_counter_ns=lambda: clock.now_ns,
        monotonic=time.monotonic,
    )
    work = torch.compiler.disable(clock.step)

    def step(x):
        work()
        return x + 1

    return step, [(torch.ones(8),)]


# -- caches ---------------------------------------------------------------------------


def twice(folder=None):
    """One graph, compiled twice; Inductor has no kernel to build for it."""
    if folder is not None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder

    def step(x):
        x = x @ x
        torch._dynamo.graph_break()
        return x @ x

    return step, [(torch.eye(8),)]


def twice_from_folder():
    return twice(os.environ["LYING_CACHE"])


def twice_from_nowhere():
    return twice(tempfile.mkdtemp(dir=os.environ["LYING_CACHE"]))


def compiled_before():
    step = torch.compile(lambda x: x + 1, backend="eager")
    step(torch.ones(8))
    return step, [(torch.ones(8),)]


def compiled_already():
    return torch.compile(lambda x: x + 1, backend="eager"), [(torch.ones(8),)]


# -- settings -------------------------------------------------------------------------


def _spied(graph, inputs, config_patches=None, **more):
    """Stands in for Inductor: leaves a line on what it was told."""
    patches = dict(config_patches or {})
    with open(os.environ["LYING_LOG"], "a") as log:
        print(patches, torch._inductor.config.max_autotune, file=log)
    return graph.forward


def leaving_traces():
    """Sets what it can, and fails where it finds what another process has set."""
    torch._inductor.compile_fx.compile_fx = _spied
    found = os.environ.setdefault("LYING_LEAK", str(os.getpid()))
    assert found == str(os.getpid()), "the environment of another process"
    return (lambda x: x + 1), [(torch.ones(8),)]


def setting_a_switch():
    torch._inductor.config.max_autotune = True
    torch._dynamo.config.verbose = False  # its default
    return (lambda x: x + 1), [(torch.ones(8),)]


# -- shapes and failures --------------------------------------------------------------


def batched(batch=2):
    return (lambda x: x * 2 + 1), [(torch.ones(batch, 8),)]


def two_kinds():
    """The second call compiles as well."""

    def step(x, up):
        return x + 1 if up else x * 3

    return step, [(torch.ones(8), True), (torch.ones(8), False)]


def failing():
    def step(x):
        raise RuntimeError("no luck\nwith two lines")

    return step, [(torch.ones(8),)]


def dying_in_eager():
    """Eager's process ends while it is sampled; compiled code goes on."""
    steps = []

    def step(x):
        if not torch.compiler.is_compiling():
            steps.append(1)
            if len(steps) > 3000:
                os._exit(3)
        return x + 1

    return step, [(torch.ones(8),)]
