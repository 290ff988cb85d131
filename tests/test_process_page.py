"""docs/process.md lists what stays replaced in a process that compiled a model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import python

PAGE = Path(__file__).resolve().parent.parent / "docs" / "process.md"

# torch compiles first, so that what it loads and replaces itself does not count.
PROGRAM = """
import signal, sys, threading, torch

def attributes():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "torch":
            continue
        for key, value in list(vars(module).items()):
            if callable(value):
                found[f"{name}.{key}"] = value
            if isinstance(value, type) and value.__module__ == name:
                for method, function in vars(value).items():
                    if callable(function) or isinstance(function, classmethod):
                        found[f"{name}.{key}.{method}"] = function
    return found

def compile_with(compiler):
    with torch.no_grad():
        compiler(torch.nn.Linear(4, 4))(torch.ones(2, 4))

compile_with(torch.compile)
before, interval = attributes(), sys.getswitchinterval()
handlers = {n: signal.getsignal(n) for n in signal.valid_signals()}
import torchproof
imported = attributes()
assert all(imported[name] is value for name, value in before.items())
compile_with(torchproof.compile)
after = attributes()
for name in sorted(before):
    if after[name] is not before[name]:
        print(name)
assert sys.getswitchinterval() == interval
assert handlers == {n: signal.getsignal(n) for n in signal.valid_signals()}
"""


@pytest.mark.slow
def test_page_lists_the_attributes_of_torch_that_stay_replaced() -> None:
    done = python(PROGRAM, variables={"PYTHONWARNINGS": "ignore"})
    assert done.returncode == 0, done.stderr
    table = PAGE.read_text().partition("<!-- begin replaced -->")[2]
    listed = re.findall(r"^\| `(torch\.\S+)` \|", table, re.M)
    assert done.stdout.split() == listed
