"""`torchproof.compile` starts the compile process, and the first call uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from shipped import children_of, wait_for
from torch import nn

import torchproof
from torchproof.runtime import compile_job


@pytest.fixture(autouse=True)
def no_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    workers = [compile_job.worker_of(waits=waits) for waits in (True, False)]
    for worker in workers:
        worker.close()
    torch._dynamo.reset()
    yield
    for worker in workers:
        worker.close()


def net(width: int) -> nn.Module:
    layers = nn.Sequential(nn.Linear(width, 8), nn.GELU(), nn.Linear(8, 4))
    return layers.eval()


def children() -> set[psutil.Process]:
    return set(children_of(os.getpid()))


@pytest.mark.slow
def test_compile_starts_the_child_that_every_first_call_uses() -> None:
    before = children()
    first = torchproof.compile(net(4))
    (child,) = wait_for(lambda: children() - before)
    for model, width in ((first, 4), (torchproof.compile(net(6)), 6)):
        with torch.no_grad():
            model(torch.randn(2, width))
        status = torchproof.status(model)
        assert [each.in_child for each in status.compilations] == [1]
        assert children() - before == {child}


def expected_policy(waits: bool) -> int:
    return os.sched_getscheduler(0) if waits else os.SCHED_IDLE


@pytest.mark.parametrize("waits", [True, False])
def test_the_child_yields_the_cpus_only_if_nobody_waits(waits: bool) -> None:
    before = children()
    torchproof.compile(net(4), wait=waits)
    (child,) = wait_for(lambda: children() - before)
    wait_for(lambda: os.sched_getscheduler(child.pid) == expected_policy(waits))


# The 41st field of a process's statistics is its scheduling policy.
RECORDING_COMPILER = """#!/bin/sh
cut -d ' ' -f 41 /proc/$$/stat >> {record}
exec g++ "$@"
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs C++ kernels")
@pytest.mark.parametrize("waits", [True, False])
def test_compilers_have_the_priority_of_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    record, compiler = tmp_path / "policies", tmp_path / "compiler"
    compiler.write_text(RECORDING_COMPILER.format(record=record))
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    model = torchproof.compile(net(4), wait=waits)
    with torch.no_grad():
        model(torch.randn(2, 4))
    wait_for(record.exists)
    assert {*map(int, record.read_text().split())} == {expected_policy(waits)}


@pytest.mark.parametrize(
    "arguments", [{"strategy": "eager"}, {"backend": "eager"}], ids=str
)
def test_no_child_for_a_model_that_needs_no_code(arguments: dict[str, Any]) -> None:
    before = children()
    torchproof.compile(net(4), **arguments)
    assert children() == before
    assert compile_job.shared_worker()._child is None


def test_no_child_for_a_function_that_may_never_be_called() -> None:
    torchproof.compile(lambda x: x + 1)
    assert compile_job.shared_worker()._child is None


EARLY_TEST = """
import threading
from torch._inductor import config, cpu_vec_isa
from torchproof.torch_private import remote_codegen

calls = []
may_end = threading.Event()

def check_build(self, code):
    calls.append(config.cpp.cxx)
    return may_end.wait(60)

cpu_vec_isa.VecISA.check_build = check_build
remote_codegen.prepare()
before = len(calls)
assert before == 1, "the test did not begin"
threading.Timer(0.5, may_end.set).start()

def pick():
    return cpu_vec_isa.valid_vec_isa_list() and bool(cpu_vec_isa.pick_vec_isa())

assert pick() and may_end.is_set(), "it was not waited for"
tested = len(calls)
assert pick() and len(calls) == tested, "it was tested twice"
with config.patch({"cpp.cxx": ("another-compiler",)}):
    assert pick() and calls[tested:] == [("another-compiler",)] * tested
"""


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs no C++ kernels")
@pytest.mark.slow
def test_the_compiler_is_tested_once_before_the_first_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_VEC_ISA_OK")
    subprocess.run([sys.executable, "-c", EARLY_TEST], check=True)
