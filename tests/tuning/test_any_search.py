"""Whatever trials give: the answer is safe, and nothing is left untold."""

from collections import Counter

import pytest
from fake_executor import EAGER_MS, Fate, Setting
from hypothesis import given, settings
from hypothesis import strategies as st

from torchproof.records import Trial
from torchproof.records.run import UserError
from torchproof.tuning.objectives import Objective

KERNELS = {"blocks": {"Block": 4}, "varying": [], "core": ["encode"]}
OUTCOMES = st.sampled_from(
    ["measured"] * 6 + ["wrong", "failed", "timed out", "out of memory", "lost"]
)
FATES = st.builds(
    Fate,
    step_ms=st.floats(1.0, 20.0),
    outcome=OUTCOMES,
    spread=st.floats(1.0, 1.5),
    start_s=st.floats(0.1, 60.0),
    peak_bytes=st.integers(100, 3000),
    seconds=st.floats(0.0, 100.0),
    final_ms=st.none() | st.floats(1.0, 20.0),
    final_spread=st.none() | st.floats(1.0, 1.2),
    final_error=st.sampled_from([None] * 5 + ["killed", "CUDA out of memory"]),
)
NAMES = ("full", "regional", "nested", "core:encode", "full+graph", "regional+graph")
NAMES += ("eager+graph", "full:reduce-overhead", "full:max-autotune")
NAMES += ("full, coordinate_descent_tuning=True", "full, combo_kernels=True")


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    fates=st.dictionaries(st.sampled_from(NAMES), FATES),
    objective=st.sampled_from(["step", "first", "memory", "steps:20", "steps:9999"]),
    effort=st.sampled_from(["quick", "normal", "full"]),
    lanes=st.integers(1, 4),
    device=st.sampled_from(["cpu", "cuda"]),
    bound=st.sampled_from([None, "launch", "compute"]),
)
def test_for_any_outcomes_the_answer_is_safe_and_all_is_told(
    tmp_path_factory: pytest.TempPathFactory,
    fates: dict[str, Fate],
    objective: str,
    effort: str,
    lanes: int,
    device: str,
    bound: str | None,
) -> None:
    setting = Setting(
        tmp_path_factory.mktemp("search"),
        fates,
        objective,
        effort,  # type: ignore[arg-type]
        lanes=lanes,
        device=device,
        probe={**KERNELS, "bound": bound},
    )
    space = setting.forms()
    try:
        chosen, search, fake = setting.run()
    except UserError as error:
        assert "--budget" in str(error)
        return
    assert_safe(chosen, search.eager, setting.objective, list(search.trials.values()))
    tried = Counter([*search.trials, *(skip.name for skip in search.skipped)])
    assert set(tried.values()) == {1} and max(Counter(fake.tried).values()) == 1
    every = [each.name for each in space.candidates]
    every += [skip.name for skip in space.skipped]
    assert set(every) <= set(tried)
    assert all(skip.why for skip in search.skipped)


def assert_safe(
    chosen: Trial, eager: Trial, objective: str, trials: list[Trial]
) -> None:
    """Right, measured, and by what is asked for no worse than eager."""
    assert chosen.outcome == "measured" and chosen in trials
    if chosen.name == "eager":
        return
    known = Objective.parse(objective)
    assert known.allows(chosen, eager, least=1.05)
    gain = known.gain(chosen, eager)
    assert gain is not None and gain >= 1.05
    if known.kind in ("step", "first"):
        assert chosen.step_ms is not None and chosen.step_ms < EAGER_MS
    else:
        own, base = known.value(chosen), known.value(eager)
        assert own is not None and base is not None and own < base
