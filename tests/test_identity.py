"""A finding's identity: the same after edits elsewhere, another after its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchproof.records.identity import plain
from torchproof.records.run import Finding

FOUND = Finding(
    code="RC201",
    kind="recompile",
    severity="medium",
    message="size 0 of `x` changed (4, 6)",
    cause="size 0 of `x` was compiled in as 4",
    fix="mark it",
    file="model.py",
    line=7,
    function="Net.forward",
)

numbers = st.one_of(
    st.integers(-(10**12), 10**12).map(str),
    st.integers(0, 10**9).map(lambda n: f"{n:,}"),
    st.floats(allow_nan=True, allow_infinity=True).map(str),
    st.integers(0, 2**48).map(hex),
)
words = st.text(st.characters(codec="ascii", exclude_characters="'\"\\\n")).map(repr)
values = st.one_of(
    numbers, words, st.sampled_from(["True", "False", "None", "s12", "torch.bfloat16"])
)
lists = st.lists(values, min_size=1, max_size=6).flatmap(
    lambda each: st.sampled_from(
        [
            f"[{', '.join(each)}]",
            f"({', '.join(each)},)",
            ", ".join(each),
            f"{', '.join(each[:-1])} and {each[-1]}" if each[1:] else each[0],
            f"{', '.join(each)}, ...",
        ]
    )
)
CAUSES = (
    "size {} of `x` was compiled in as {}",
    "`self.step` is a Python value that was compiled in as {}",
    "the size became the constant {}; sizes {} came later",
    "RuntimeError: shape {} is invalid for input of size {}",
    "it recompiled for each change: the length of `past` changed ({})",
    "graph breaks take {} of each call and use up what is gained",
    "tracing {} takes {} of the time",
)


@settings(deadline=None)  # machines may be busy
@given(st.sampled_from(CAUSES), st.data())
def test_values_and_lists_of_them_are_no_part_of_it(
    cause: str, data: st.DataObject
) -> None:
    one, other = (
        replace(FOUND, cause=cause.format(*(data.draw(lists) for _ in range(2))))
        for _ in range(2)
    )
    assert one.identity == other.identity, (plain(one.cause), plain(other.cause))


@settings(deadline=None)  # machines may be busy
@given(
    st.integers(1, 10**6),
    st.one_of(st.none(), st.integers(0, 10**6)),
    st.floats(allow_nan=False),
)
def test_lines_counts_and_costs_are_no_part_of_it(
    line: int, count: int | None, cost: float
) -> None:
    moved = replace(FOUND, line=line, count=count, steps=count, cost_us=cost)
    moved = replace(moved, message="m", source="s", kind="hazard", severity="low")
    assert moved.identity == FOUND.identity


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("in 1 call", "in 3 calls"),
        ("changed (was 7)", "changed (9, 10, ...)"),
        ("at torch_dynamo_resume_in_run_at_12", "at torch_dynamo_resume_in_run_at_40"),
        ("no kernel in /home/a/b/ops.py", "no kernel in /root/ops.py"),
        ("it was 12.5ms of 30 ms (41%)", "it was 2ms of 3 ms (6.5%)"),
        ("x; the guard that failed: L[0] == 1", "x; the guard that failed: y ..."),
    ],
)
def test_what_is_written_in_another_way_is_the_same(one: str, other: str) -> None:
    assert plain(one) == plain(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("`x.item()` needs", "`y.item()` needs"),
        ("`self.fc1(x)` breaks", "`self.fc2(x)` breaks"),
        ("the if `a > 0`", "the while `a > 0`"),
        ("conv2d has none", "conv3d has none"),
    ],
)
def test_other_code_is_another_finding(one: str, other: str) -> None:
    assert replace(FOUND, cause=one).identity != replace(FOUND, cause=other).identity
    assert plain(one) != plain(other)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a/model.py", "b/model.py", False),
        ("/home/a/model.py", "/root/model.py", True),
        ("/v/lib/python3.11/site-packages/p/m.py", "/w/site-packages/p/m.py", True),
        ("/w/site-packages/p/m.py", "/w/site-packages/q/m.py", False),
        (
            "src/torchproof/targets/workloads/gpt.py",
            "/x/torchproof/targets/workloads/gpt.py",
            True,
        ),
    ],
)
def test_the_file_is_named_as_on_every_machine(
    one: str, other: str, same: bool
) -> None:
    found = [replace(FOUND, file=file).identity for file in (one, other)]
    assert (found[0] == found[1]) is same


@pytest.mark.parametrize("change", [{"code": "RC202"}, {"function": "Net.other"}])
def test_code_and_function_are_part_of_it(change: dict[str, str]) -> None:
    assert replace(FOUND, **change).identity != FOUND.identity  # type: ignore[arg-type]
