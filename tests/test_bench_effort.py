"""What `bench --effort` changes: the processes and the sampling time of a strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchproof import api
from torchproof.cli import verbs
from torchproof.measure import Plan
from torchproof.records import UserError

FACTORY = "import torch\n\n\ndef make():\n    return torch.relu, [(torch.ones(2),)]\n"


class Planned(BaseException):  # the verb catches an Exception
    """Carries the plan that would be measured."""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    def measure(plan: Plan, *_: Any) -> Any:
        raise Planned(plan)

    monkeypatch.setattr(api.measure, "measure", measure)
    monkeypatch.setattr(api, "_counted", lambda *_: {})
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("small.py").write_text(FACTORY, encoding="utf-8")
    tmp_path.joinpath("loop.py").write_text("print(1)\n", encoding="utf-8")
    return "small.py:make"


def planned(target: str, **arguments: Any) -> tuple[int, float]:
    """The processes and the seconds for each strategy."""
    with pytest.raises(Planned) as caught:
        api.bench(target, **arguments)
    plan = caught.value.args[0]
    return plan.repeats, plan.seconds


def test_each_effort_takes_longer_than_the_one_before(target: str) -> None:
    quick, normal, full = (
        planned(target, effort=effort) for effort in ("quick", "normal", "full")
    )
    assert quick[0] == 1 and normal == planned(target)
    assert quick[0] < normal[0] < full[0] and quick[1] < normal[1] < full[1]
    # A process samples as long with each effort.
    assert len({seconds / repeats for repeats, seconds in (quick, normal, full)}) == 1
    assert planned(target, effort="full", repeats=3, seconds=0.5) == (3, 0.5)
    with pytest.raises(Planned) as caught:
        verbs.main(["bench", target, "-q", "--effort", "quick"])
    assert caught.value.args[0].repeats == 1


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("small.py:make", {"seconds": 0}, "seconds"),
        ("small.py:make", {"repeats": 0}, "repeats"),
        ("small.py:make", {"effort": "static"}, "quick, normal or full"),
        ("loop.py", {"effort": "full"}, "--effort is for workloads"),
    ],
)
def test_what_measures_nothing_is_refused(
    target: str, name: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        api.bench(name, **arguments)
