"""What traced code reads of its surroundings, found in its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchproof.observe.unguarded_reads import reads_of
from torchproof.records.run import Frame

SOURCE = '''\
import os as system
import time
from os import environ, getenv
import numpy as np
from numpy import random as npr
import datetime
from torch.compiler import assume_constant_result, is_compiling
import torch

GAIN = 2.0


@assume_constant_result
def constant():
    return 1


def f(x):
    """os.environ.get("IN_A_STRING")"""
    # os.environ.get("IN_A_COMMENT")
    a = system.environ.get("ONE", "fast") == "slow"
    b = environ["TWO"]
    c = "THREE" in environ
    d = getenv("FOUR")
    name = "FIVE"
    e = system.getenv(name)
    n = np.random.randn(3) + npr.rand()
    if is_compiling() or torch.compiler.is_dynamo_compiling():
        x = x * GAIN
    x.register_hook(print)
    t = time.time() + datetime.datetime.now().second
    return x * constant()


def quiet(x, environ_like={}):
    def inner(y):
        return environ["INSIDE"]
    environ_like.get("ARGUMENT")
    return x.time.time() + torch.randn(3)


g = lambda x: x * float(getenv("LAMBDA"))
'''


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(SOURCE)
    return str(path)


def line(text: str) -> int:
    return next(i + 1 for i, t in enumerate(SOURCE.splitlines()) if text in t)


def test_each_kind_of_read_is_found_at_its_line(file: str) -> None:
    found = reads_of([Frame(file, line("def f(x)"), "f")])
    assert [(read.what, read.name, read.frame.line) for read in found] == [
        ("environment", "ONE", line('"ONE"')),
        ("environment", "TWO", line('"TWO"')),
        ("environment", "THREE", line('"THREE"')),
        ("environment", "FOUR", line('"FOUR"')),
        ("environment", "name", line("getenv(name)")),
        ("numpy_random", "numpy.random.randn", line("np.random")),
        ("numpy_random", "numpy.random.rand", line("np.random")),
        ("compiling", "is_compiling", line("is_compiling()")),
        ("compiling", "is_dynamo_compiling", line("is_compiling()")),
        ("global", "GAIN", line("x * GAIN")),
        ("hook", "register_hook", line("register_hook")),
        ("clock", "time.time", line("t = time")),
        ("clock", "datetime.datetime.now", line("t = time")),
        ("constant_result", "constant", line("x * constant()")),
    ]


def test_what_the_code_compares_a_variable_with_is_told(file: str) -> None:
    found = reads_of([Frame(file, line("def f(x)"), "f")])
    [one] = [read for read in found if read.name == "ONE"]
    assert {"slow", "fast"} <= set(one.values) and "ONE" not in one.values


def test_other_functions_and_likenesses_are_no_reads(file: str) -> None:
    assert reads_of([Frame(file, line("def quiet"), "quiet")]) == []
    assert reads_of([Frame(file, line("def f(x)"), "elsewhere")]) == []
    assert reads_of([Frame("/no/such/file.py", 1, "f")]) == []


def test_decorators_lambdas_and_resumed_functions_are_recognised(file: str) -> None:
    [read] = reads_of([Frame(file, line("g = lambda"), "<lambda>")])
    assert (read.name, read.frame.code) == ("LAMBDA", SOURCE.splitlines()[-1])
    first = line("@assume_constant_result")
    assert reads_of([Frame(file, first, "constant")]) == []
    resumed = Frame(file, line("d = getenv"), "torch_dynamo_resume_in_f_at_22")
    assert "FOUR" in {read.name for read in reads_of([resumed])}
