"""What progress says is being compiled: the user's names, not those of torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchproof.observe.capture import _ProgressReporter

SOURCE = """\
def decorator(f):
    def wrapper(self, *args):
        return f(self, *args)
    return wrapper

class Block:
    @decorator
    def forward(self, x):
        return x
"""


@pytest.mark.parametrize(
    ("name", "line", "shown"),
    [
        ("wrapper", 2, "Net"),
        ("forward", 7, "Block.forward"),
        ("torch_dynamo_resume_in_forward_at_9", 9, "Block.forward"),
        ("forward", 40, "Net"),  # the code of the compiled model
    ],
)
def test_functions_have_their_names(
    name: str, line: int, shown: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.py"
    file.write_text(SOURCE)
    assert said(str(file), line, name) == f"compiling {shown}, call 1 of 3, 12 s"


def test_functions_of_torch_are_the_model() -> None:
    file = "/lib/python3.11/site-packages/torch/_dynamo/external_utils.py"
    assert said(file, 67, "inner") == "compiling Net, call 1 of 3, 12 s"


def said(file: str, line: int, name: str) -> str:
    lines: list[str] = []
    report = _ProgressReporter(lines.append)
    code = [[file, 40, "forward"]]
    report({"kind": "plan", "calls": 3}, 1.0)
    report({"kind": "wrapper", "name": "Net", "code": code, "around": []}, 1.0)
    report({"kind": "trace", "metadata": {"str": [file, 8]}}, 1.0)
    stack = [{"filename": 8, "line": line, "name": name}]
    start = {"kind": "trace", "call": 0, "metadata": {"dynamo_start": {"stack": stack}}}
    report(start, 0.5)  # too early to be told
    report(start, 12.0)
    return " | ".join(lines)
