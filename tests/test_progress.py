"""What progress says: what is being compiled, which part runs, and what is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchproof.checking.part_progress import PartProgress
from torchproof.observe import size_sweep
from torchproof.observe.capture import _ProgressReporter
from torchproof.process import Followed
from torchproof.records import Part, PartState, Run
from torchproof.targets import Options, Target

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
    assert (
        said(str(file), line, name)
        == f"began to compile {shown} in call 1 of 3 after 12 s"
    )


def test_functions_of_torch_are_the_model() -> None:
    file = "/lib/python3.11/site-packages/torch/_dynamo/external_utils.py"
    assert said(file, 67, "inner") == "began to compile Net in call 1 of 3 after 12 s"


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


# -- the parts of a check --------------------------------------------------------------

PARTS = ["breaks", "baseline", "batch", "static"]
EARLIER = Run(
    "id",
    "target",
    "",
    {},
    {},
    parts={
        "breaks": Part("found", seconds=10.0),
        "baseline": Part("passed", seconds=60.0),
        "batch": Part("skipped", "no keyword"),
        "static": Part("passed", seconds=1.0),
    },
)


def states_of(earlier: Run | None, *begun: tuple[str, float]) -> list[PartState]:
    """What is shown as parts begin at these times."""
    states: list[PartState] = []
    times = iter([second for _, second in begun])
    progress = PartProgress(
        PARTS, earlier, print, show=states.append, clock=lambda: next(times)
    )
    for part, _ in begun:
        progress.enter(part)
    return states


def test_first_check_of_a_target_has_no_estimate() -> None:
    states = states_of(None, ("breaks", 0.0), ("baseline", 20.0))
    assert states == [PartState("breaks", 1, 4), PartState("baseline", 2, 4)]


def test_time_left_is_estimated_from_the_earlier_check() -> None:
    begun = ("breaks", 0.0), ("baseline", 20.0), ("static", 140.0)
    states = states_of(EARLIER, *begun)
    assert states[0].left_s is None  # nothing of this run to scale by
    assert states[1].left_s == 2 * (60 + 0 + 1)  # twice as slow as before
    assert states[2].left_s == 2 * 1
    assert [state.number for state in states] == [1, 2, 4]


@pytest.mark.parametrize("part", ["baseline", "breaks", "static"])
def test_part_of_unknown_length_leaves_no_estimate(part: str) -> None:
    earlier = replace(EARLIER, parts={**EARLIER.parts, part: Part("failed")})
    assert states_of(earlier, ("breaks", 0.0), ("baseline", 20.0))[1].left_s is None


def test_sizes_are_counted_and_the_rest_estimated_from_those_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = {("batch", 4): 10.0, ("batch", 8): 14.0, ("sequence", 128): 15.0}

    def follow(module: str, job: str, notice: Any, conditions: Any) -> Followed:
        for (dimension, value), seconds in begun.items():
            notice({"kind": "size", "dimension": dimension, "value": value}, seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(size_sweep, "follow", follow)
    lines: list[str] = []
    target = Target("file.py:make", "factory", "file.py")
    with pytest.raises(KeyboardInterrupt):
        size_sweep.recompiles_by_size(
            target, Options(), {"batch": (4, 8), "sequence": (128, 192)}, lines.append
        )
    assert lines == [
        "counting recompiles, batch 4, size 1 of 4",
        "counting recompiles, batch 8, size 2 of 4, about 12 s left",
        "counting recompiles, sequence 128, size 3 of 4, about 5 s left",
    ]
