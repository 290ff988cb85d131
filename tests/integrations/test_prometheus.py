"""Metrics and health of compiled models: true, monotonic, and absent if unknown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

import torchproof
from torchproof import UserError
from torchproof.integrations.health import health
from torchproof.runtime.cudagraph import graph_status
from torchproof.runtime.status_report import FALLBACK_KINDS, Fallback, State

prometheus_client = pytest.importorskip(
    "prometheus_client", reason="the extra `serve` is not installed"
)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "integrations.md"
ROW = torch.ones(2, 4)


class Doubler(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def failing(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("no code today")


@pytest.fixture
def registry() -> Any:
    torch.compiler.reset()  # a second model of the class would share code
    return prometheus_client.CollectorRegistry()


def register(registry: Any, **models: Any) -> None:
    from torchproof.integrations.prometheus import StatusCollector

    registry.register(StatusCollector(**models))


def scraped(registry: Any) -> dict[str, float]:
    """Samples by name, and by kind if they have one, as a server reads them."""
    from prometheus_client.parser import text_string_to_metric_families as parsed

    text = prometheus_client.generate_latest(registry).decode()
    samples = [sample for family in parsed(text) for sample in family.samples]
    named = [each.name + each.labels.get("kind", "") for each in samples]
    assert len(named) == len(set(named))
    return {
        name.removeprefix("torchproof_"): each.value
        for name, each in zip(named, samples, strict=True)
    }


def test_the_figures_are_those_of_the_status(registry: Any) -> None:
    model = torchproof.compile(Doubler(), backend="eager")
    register(registry, doubler=model)
    before = scraped(registry)
    assert before["calls_total"] == before["compiles_total"] == 0
    assert "graph_breaks" not in before  # unknown: nothing was compiled
    model(ROW), model(ROW), model(torch.ones(3, 4))
    after = scraped(registry)
    status = torchproof.status(model)
    assert after.pop("compile_seconds_total") == pytest.approx(status.compile_s)
    assert after.pop("stall_seconds_total") == pytest.approx(status.totals.stall_s)
    assert status.totals.stall_s > 0
    fallbacks = {name: after.pop(f"fallbacks_total{name}") for name in FALLBACK_KINDS}
    assert set(fallbacks.values()) == {0}
    assert after == {
        "calls_total": 3,
        "compiled_calls_total": 3,
        "compiles_total": 2,
        "recompiles_total": 1,
        "stalls_total": 2,
        "graph_breaks": 0,
    }
    torchproof.compile(model, backend="eager")  # its counters begin again
    assert scraped(registry)["calls_total"] == 0


def test_a_fallback_counts_by_its_kind_for_good(registry: Any) -> None:
    """Prometheus would take 2 after 3 for a restart, and add 2."""
    model = torchproof.compile(Doubler(), backend=failing)
    register(registry, doubler=model)
    torch.testing.assert_close(model(ROW), ROW * 2)
    assert scraped(registry)["fallbacks_totalcompile error"] == 1
    torchproof.retry(model)  # which forgets the record
    assert torchproof.status(model).fallbacks == ()
    assert scraped(registry)["fallbacks_totalcompile error"] == 1
    telemetry = model.forward.telemetry
    item = Fallback("compile error", "forward", "the model's own error")
    telemetry.fell_back(item)
    telemetry.undelivered.clear()
    assert scraped(registry)["fallbacks_totalcompile error"] == 2
    telemetry.remove([item])
    after = scraped(registry)
    assert after["fallbacks_totalcompile error"] == 2
    assert after["compiled_calls_total"] == 0


def test_counts_go_on_where_records_end(registry: Any) -> None:
    model = torchproof.compile(Doubler(), backend="eager")
    register(registry, doubler=model)
    for number in range(1200):
        item = Fallback("storm", f"function {number}", "often")
        model.forward.telemetry.fell_back(item)
        model.forward.telemetry.note(f"note {number}")
    model.forward.telemetry.undelivered.clear()
    status = torchproof.status(model)
    assert len(status.fallbacks) == 1000 and len(status.notes) <= 1001
    assert scraped(registry)["fallbacks_totalstorm"] == 1200


def test_a_replaced_forward_leaves_routes_that_answer(registry: Any) -> None:
    """An error of a health route would restart a service that works."""
    model = torchproof.compile(Doubler(), backend="eager")
    other = torchproof.compile(nn.Linear(4, 4), backend="eager")
    register(registry, doubler=model, other=other)
    model(ROW)
    compiled, model.forward = model.forward, lambda x: x * 3
    torch.testing.assert_close(model(ROW), ROW * 3)
    found = health(model)
    assert found["state"] == "eager" and "forward was replaced" in found["reason"]
    text = prometheus_client.generate_latest(registry).decode()
    assert 'model="other"' in text and 'model="doubler"' not in text
    model.forward = compiled
    text = prometheus_client.generate_latest(registry).decode()
    assert 'torchproof_calls_total{model="doubler"} 1.0' in text


def test_models_share_families_and_each_has_one_name(registry: Any) -> None:
    first = torchproof.compile(Doubler(), backend="eager")
    second = torchproof.compile(nn.Linear(4, 4), backend="eager")
    register(registry, first=first, second=second)
    second(ROW)
    text = prometheus_client.generate_latest(registry).decode()
    assert 'torchproof_calls_total{model="first"} 0.0' in text
    assert 'torchproof_calls_total{model="second"} 1.0' in text
    with pytest.raises(ValueError, match="Duplicated"):
        register(registry, third=first)
    with pytest.raises(UserError, match="not compiled"):
        register(registry, plain=Doubler())


def test_a_graphed_step_has_hits_and_a_plain_model_none(
    registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphed = torchproof.graph(Doubler().eval())
    graphed(ROW)
    register(registry, step=graphed)
    status = graphed.status()
    assert scraped(registry) == {
        "calls_total": status.calls,
        "graph_hits_total": status.replays,
        "graph_recordings_total": status.recordings,
    }
    replayed = graph_status.Status(
        **{**vars(status), "calls": 9, "replays": 7, "recordings": 1}
    )
    monkeypatch.setattr(type(graphed), "status", lambda self: replayed)
    assert scraped(registry)["graph_hits_total"] == 7


def test_health_names_state_strategy_and_reason() -> None:
    torch.compiler.reset()
    model = torchproof.compile(Doubler(), backend="eager")
    assert health(model)["state"] == "not called"
    model(ROW)
    why = torchproof.status(model).why
    assert health(model) == {"state": "compiled", "strategy": "full", "reason": why}
    broken = torchproof.compile(Doubler(), backend=failing)
    broken(ROW)
    assert health(broken)["state"] == "eager"
    reason = health(broken)["reason"]
    assert reason.startswith("graph 1: compile error after ")
    assert "no code today" in reason
    identity = torchproof.compile(nn.Identity(), backend="eager")
    identity(ROW)
    assert health(identity)["state"] == "eager"
    assert health(identity)["reason"] == "no graph was captured"
    graphed = torchproof.graph(Doubler().eval())
    assert health(graphed)["state"] == "not called"
    graphed(ROW)
    reason = str(graphed.status().stops[-1])  # this process has no GPU for it
    assert (health(graphed)["state"], health(graphed)["reason"]) == ("eager", reason)
    plain = torchproof.compile(Doubler(), strategy="eager")
    assert health(plain)["state"] == health(plain)["strategy"] == "eager"


def test_switched_off_there_are_no_metrics(
    registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHPROOF_DISABLE", "1")
    model = torchproof.compile(Doubler())
    register(registry, doubler=model)
    assert scraped(registry) == {}
    assert health(model)["state"] == "eager"
    monkeypatch.delenv("TORCHPROOF_DISABLE")
    found = health(model)
    assert found["state"] == "eager" and "was not compiled" in found["reason"]


def test_the_pages_have_every_metric_state_and_kind_of_fallback() -> None:
    from torchproof.integrations import prometheus

    page, compiling = PAGE.read_text(), (PAGE.parent / "compile.md").read_text()
    rows = re.findall(r"^\| `torchproof_(\w+)` ", page, re.M)
    counters = [f"{name}_total" for name in prometheus._COUNTERS]
    assert rows == [*counters, *prometheus._GAUGES]
    for state in get_args(State):
        assert f"| `{state}` | " in page and f"`{state}`" in compiling
    kinds = (PAGE.parent / "reference" / "reliability.md").read_text()
    assert all(f"| `{kind}` | " in kinds for kind in FALLBACK_KINDS)
