"""Plans that cannot divide a model, and weights that do not fit, are one clear line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from torch import nn

from torchproof.records import UserError
from torchproof.targets import Job, calls, parse, tensor_parallel
from torchproof.targets.workloads import gpt

RANKS = 3


class Mesh:
    """Only the number of ranks is needed to refuse a plan."""

    def size(self) -> int:
        return RANKS


def net(**attributes: Any) -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 8))
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


@pytest.mark.parametrize(
    ("model", "plan", "message"),
    [
        (net(), None, "Sequential has no plan for tensor parallelism"),
        (net(), ["0"], "is a list"),
        (net(), {"blocks.*": "colwise"}, "blocks.* matches no module"),
        (net(), {"0.weight": "colwise"}, "0.weight is a parameter"),
        (net(), {"1": "colwise"}, "1 is a GELU"),
        (net(), {"0": "diagonal"}, "0 has the style 'diagonal'"),
        (net(), {"2": "colwise"}, "3 ranks cannot divide the 8 features of 2"),
        (net(_tp_plan={"0": "packed_colwise"}), None, "'packed_colwise'"),
        (net(_tp_plan={"layers.*": "colwise"}), None, "names no module of Sequential"),
        (
            net(config=SimpleNamespace(num_key_value_heads=2)),
            {"0": "colwise"},
            "cannot divide the 2 heads of keys and values",
        ),
    ],
)
def test_a_plan_that_divides_nothing_is_refused(
    model: nn.Module, plan: Any, message: str
) -> None:
    with pytest.raises(UserError) as raised:
        tensor_parallel.divide(model, Mesh(), plan)
    assert message in str(raised.value) and len(str(raised.value).splitlines()) == 1


def test_ranks_get_whole_heads_of_the_workload() -> None:
    model, _ = gpt.make("tiny", deferred=True)
    with pytest.raises(UserError, match="3 ranks cannot divide the 4 attention heads"):
        tensor_parallel.divide(model, Mesh())


def test_the_share_of_a_rank_has_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks of a machine share its memory; DDP has the whole model on each."""
    job = Job(parse("workload:gpt"), device="cpu", size="tiny", in_shares=True)
    weights = 924_416 * 4
    free = SimpleNamespace(available=weights)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    for wrap in ("fsdp2", "tp"):
        assert calls.resolved(Job.from_json({**job.to_json(), "wrap": wrap}))
    with pytest.raises(UserError, match="choose a smaller --size"):
        calls.resolved(Job.from_json({**job.to_json(), "wrap": "ddp"}))


def test_deferred_weights_leave_the_calls_as_they_are() -> None:
    whole, deferred = (gpt.make("tiny", deferred=flag) for flag in (False, True))
    assert all(parameter.is_meta for parameter in deferred[0].parameters())
    assert all(
        one.equal(other) for (one,), (other,) in zip(whole[1], deferred[1], strict=True)
    )
