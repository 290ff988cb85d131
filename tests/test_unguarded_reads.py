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
    a = system.environ.get("ONE", "fast") == "slow"  # -> environment ONE
    b = environ["TWO"]  # -> environment TWO
    c = "THREE" in environ  # -> environment THREE
    d = getenv("FOUR")  # -> environment FOUR
    name = "FIVE"
    e = system.getenv(name)  # -> environment name
    n = np.random.randn(3)  # -> numpy_random numpy.random.randn
    n = n + npr.rand()  # -> numpy_random numpy.random.rand
    if is_compiling():  # -> compiling is_compiling
        x = x * GAIN  # -> global GAIN
    if torch.compiler.is_dynamo_compiling():  # -> compiling is_dynamo_compiling
        x.register_hook(print)  # -> hook register_hook
    t = time.time()  # -> clock time.time
    t = datetime.datetime.now().second  # -> clock datetime.datetime.now
    return x * constant()  # -> constant_result constant


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
    return next(i for i, t in enumerate(SOURCE.splitlines(), 1) if text in t)


def test_each_kind_of_read_is_found_at_its_line(file: str) -> None:
    """Each line of `f` that reads something says so at its end."""
    found = reads_of([Frame(file, line("def f(x)"), "f")])
    marked = [
        (*text.partition(" # -> ")[2].split(), number)
        for number, text in enumerate(SOURCE.splitlines(), 1)
        if " # -> " in text
    ]
    assert [(read.what, read.name, read.frame.line) for read in found] == marked
    # What the code compares a variable with.
    assert {"slow", "fast"} <= set(found[0].values) and "ONE" not in found[0].values


def test_other_functions_and_likenesses_are_no_reads(file: str) -> None:
    for name, start in (("quiet", "def quiet"), ("elsewhere", "def f(x)")):
        assert reads_of([Frame(file, line(start), name)]) == []
    assert reads_of([Frame("/no/such/file.py", 1, "f")]) == []


def test_decorators_lambdas_and_resumed_functions_are_recognised(file: str) -> None:
    [read] = reads_of([Frame(file, line("g = lambda"), "<lambda>")])
    assert (read.name, read.frame.code) == ("LAMBDA", SOURCE.splitlines()[-1])
    first = line("@assume_constant_result")
    assert reads_of([Frame(file, first, "constant")]) == []
    resumed = Frame(file, line("d = getenv"), "torch_dynamo_resume_in_f_at_22")
    assert "FOUR" in {read.name for read in reads_of([resumed])}
