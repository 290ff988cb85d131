"""Energy per step, from a library that answers as NVIDIA's does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from torchproof.measure import energy
from torchproof.measure.energy import Boards
from torchproof.measure.replies import Energy, Facts, Reference
from torchproof.measure.session import Session
from torchproof.measure.specs import EAGER, Plan, StrategySpec
from torchproof.measure.strategy_state import StrategyState
from torchproof.targets import Target

WATTS = 400.0
STEP_S = 0.002
REFUSED = 4


class Nvml:
    """A board that draws constant power; its counter changes every 50 ms."""

    def __init__(self, refuses: str = "", frozen: bool = False) -> None:
        self.refuses, self.frozen = refuses.split(), frozen
        self.asked: list[bytes] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        values: Mapping[str, Callable[[], float]] = {
            "nvmlDeviceGetTotalEnergyConsumption": self._millijoules,
            "nvmlDeviceGetPowerUsage": lambda: WATTS * 1e3,
            "nvmlDeviceGetEnforcedPowerLimit": lambda: 700_000,
        }

        def call(*arguments: Any) -> int:
            if name in self.refuses:
                return REFUSED
            if name in values:
                arguments[1]._obj.value = int(values[name]())
            if name == "nvmlDeviceGetHandleByUUID":
                self.asked.append(arguments[0])
            return 0

        return call

    def nvmlErrorString(self, code: int) -> bytes:
        assert code == REFUSED
        return b"Insufficient Permissions"

    def _millijoules(self) -> float:
        if self.frozen:
            return 0
        return time.monotonic() // 0.05 * 0.05 * WATTS * 1e3


def measured(library: Nvml, uuids: tuple[str, ...] = ("aa-bb",), **more: Any) -> Energy:
    def step() -> None:
        time.sleep(STEP_S)

    return energy.measure(step, 2, lambda: Boards(uuids, library), **more)


def test_the_counter_gives_watts_and_joules() -> None:
    library = Nvml()
    found = measured(library, seconds=0.6)
    assert library.asked == [b"GPU-aa-bb"]
    assert found.method == "counter" and found.why is None
    assert found.watts == pytest.approx(WATTS, rel=0.1)
    assert found.seconds and found.seconds >= 0.6 and found.steps and found.watts
    total = found.watts * found.seconds
    assert found.joules_per_step == pytest.approx(total / found.steps)
    assert (found.limit_watts, found.boards) == (700.0, 1)


def test_several_boards_add_up() -> None:
    found = measured(Nvml(), ("one", "two"), seconds=0.3)
    assert found.boards == 2
    assert found.watts == pytest.approx(2 * WATTS, rel=0.2)


@pytest.mark.parametrize(
    "library",
    [Nvml("nvmlDeviceGetTotalEnergyConsumption"), Nvml(frozen=True)],
    ids=["no counter", "a counter that stands still"],
)
def test_sampled_power_stands_in_for_the_counter(
    library: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "_LONGEST_S", 0.2)
    monkeypatch.setattr(energy, "_SAMPLED_WARM_S", 0.1)
    found = measured(library, seconds=0.2)
    assert found.method == "samples"
    assert found.watts == pytest.approx(WATTS)


@pytest.mark.parametrize(
    "refuses",
    [
        "nvmlInit_v2",
        "nvmlDeviceGetHandleByUUID",
        "nvmlDeviceGetTotalEnergyConsumption nvmlDeviceGetPowerUsage",
    ],
)
def test_what_is_not_permitted_is_not_measured(refuses: str) -> None:
    found = measured(Nvml(refuses))
    assert found == Energy(why="NVML: Insufficient Permissions")


def test_without_the_library_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(energy, "_LIBRARY", "libno-such-library.so.1")
    found = energy.measure(lambda: None, 1, lambda: Boards(["aa"]))
    assert found == Energy(why="libno-such-library.so.1 is not installed")


def test_a_power_limit_that_is_not_told_is_unknown() -> None:
    found = measured(Nvml("nvmlDeviceGetEnforcedPowerLimit"), seconds=0.2)
    assert found.limit_watts is None and found.watts is not None


@pytest.mark.parametrize(
    ("device", "wanted", "asked"),
    [("cuda", True, ["measure_energy"]), ("cuda", False, []), ("cpu", True, [])],
)
def test_only_a_gpu_is_asked_for_its_energy(
    device: str, wanted: bool, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target("file.py:make", "factory", "file.py")
    plan = Plan(target, (), energy=wanted)
    session = Session(plan, Path(), lambda text: None)
    session.references[None, 0] = Reference(environment={"device": device})
    state = StrategyState(StrategySpec(EAGER), Path(), facts=[Facts()])
    commands: list[str] = []

    def ask(kind: Any, do: str, limit_s: float | None) -> Energy:
        commands.append(do)
        return Energy(joules_per_step=1.0)

    monkeypatch.setattr(state, "ask", ask)
    session._measure_energy(state, 0)
    assert commands == asked
    assert state.facts[0].energy == (Energy(joules_per_step=1.0) if asked else None)
    again = Facts.from_json(state.facts[0].to_json())
    assert again.energy == state.facts[0].energy


@pytest.mark.parametrize("uuids", [("one",), ("one", "two")])
def test_a_meter_gives_the_mean_power_between_two_readings(
    uuids: tuple[str, ...],
) -> None:
    meter = energy.PowerMeter(lambda: Boards(uuids, Nvml()))
    meter.start()
    time.sleep(0.5)
    found = meter.stop()
    assert found.watts == pytest.approx(WATTS * len(uuids), rel=0.25)
    assert (found.method, found.boards) == ("counter", len(uuids))


def test_a_meter_says_why_it_cannot_measure() -> None:
    refusing = Nvml("nvmlDeviceGetTotalEnergyConsumption")
    for boards in (
        Boards(("one",), refusing),
        Boards(("one",), Nvml(frozen=True)),
        Boards((), Nvml()),
    ):
        meter = energy.PowerMeter(lambda boards=boards: boards)  # type: ignore[misc]
        meter.start()
        found = meter.stop()
        assert found.watts is None and found.why
    assert energy.PowerMeter().stop().why
