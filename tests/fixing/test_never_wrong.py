"""Whatever the proof accepts is equivalent on inputs that the proof has not seen."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from fixing.small_programs import PROGRAMS, Program, drafts, proved, shown
from hypothesis import HealthCheck, Phase, given, settings

from torchproof.fixing.behaviour import Behaviour
from torchproof.torch_private import comparison

PROOF, UNSEEN = range(3), range(10, 22)
counted: Counter[str] = Counter()


def assert_never_wrong(program: Program, unseen: range) -> None:
    torch.compiler.reset()
    for draft in drafts(program):
        counted["drafts"] += 1
        found = proved(program.text, draft.text, PROOF)
        if found is None or found.problems or (draft.tier == "safe" and found.unsafe):
            continue
        counted["accepted"] += 1
        for seed in unseen:
            once = range(seed, seed + 1)
            # An unsafe edit may leave a check or a line of text out when compiled.
            for compiled in (False, True)[: 2 if draft.tier == "safe" else 1]:
                one = shown(program.text, once)
                other = shown(draft.text, once, compiled=compiled)
                _assert_same(one, other, f"{draft.title}, compiled {compiled}, {seed}")


def _assert_same(one: Behaviour | str, other: Behaviour | str, what: str) -> None:
    if isinstance(one, str) or isinstance(other, str):
        assert one == other, what
        return
    found = comparison.compare(other.answers, one.answers)
    assert found.verdict != "wrong", f"{what}: {found.where}: {found.why}"
    kept = comparison.compare(other.attributes, one.attributes)
    assert kept.verdict != "wrong", f"{what}: {kept.where}: {kept.why}"


_FAST = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.generate],  # shrinking compiles hundreds of programs
)


def check_programs(examples: int, unseen: range = UNSEEN) -> None:
    """Edits have to be drafted, some of them accepted, and none wrong."""
    counted.clear()

    @settings(_FAST, max_examples=examples)
    @given(PROGRAMS)
    def check(program: Program) -> None:
        assert_never_wrong(program, unseen)

    check()
    assert counted["accepted"] > 0


def test_what_is_accepted_is_equivalent() -> None:
    check_programs(3, UNSEEN[:4])


@pytest.mark.slow
def test_what_is_accepted_is_equivalent_in_many_programs() -> None:
    check_programs(12, UNSEEN[:8])
    assert counted["drafts"] > counted["accepted"], "no edit was rejected"
