"""Advice names the code that it is about, and only what holds for that code."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchproof.checking import rules
from torchproof.records import (
    BEFORE_THE_BREAK,
    BreakEvent,
    BreakReason,
    Finding,
    Frame,
    Guard,
    LimitEvent,
    Observation,
    RecompileEvent,
    SpecializationEvent,
    WrapperEvent,
)

BREAKS = {"GB101": "GB0124", "GB102": "GB0170", "GB104": "GB0291", "GB115": "GB0022"}
# Each with its rule, the last line of a function, the code that is underlined, what the
# advice names, and what it does not.
ADVICE = {
    "the statement that writes": (
        *("GB104", 'print("a", x); z = x + 1', ""),
        *('`print("a", x)`', "z ="),
    ),
    "what a part of an expression converts": (
        *("GB101", "return x * float(x.max()) + 1", "float(x.max()) + 1"),
        *("`x.max()`", "float"),
    ),
    "what a keyword converts": (
        *("GB101", "self.n = f(x, size=(int(size[0]), int(size[1])))", ""),
        *("`size[0]`", "int("),
    ),
    "what a part of a statement converts": (
        *("GB101", "return f(float(y),", ""),
        *("`f(float(y),`", "`y`"),
    ),
    "a filter of which only the condition is underlined": (
        *("GB102", "return [v for v in x if v > 0]", "v > 0"),
        *("`[v for v in x if v > 0]`", "a, b"),
    ),
    "a time that is only reported": (
        *("GB115", "print(time.perf_counter() - 1)", "time.perf_counter()"),
        *("outside", "time.perf_counter"),
    ),
    "a time that is computed with": (
        *("GB115", "return x * time.time()", "time.time()"),
        *("`time.time()`", "outside"),
    ),
    "no time at all": (
        *("GB115", "time.sleep(1)", "time.sleep(1)"),
        *("`time.sleep(1)`", "outside"),
    ),
}


def function(folder: Path, code: str, underlined: str = "") -> tuple[Frame, Frame]:
    """A function whose only line is the code, and the frame of that line."""
    file = folder / "program.py"
    file.write_text(f"def f(x):\n    {code}\n")
    start = code.index(underlined) if underlined else 0
    columns = (start, start + len(underlined)) if underlined else None
    return Frame(str(file), 1, "f", ""), Frame(str(file), 2, "f", code, columns)


@pytest.mark.parametrize("case", ADVICE)
def test_advice_names_its_code(case: str, tmp_path: Path) -> None:
    rule, code, underlined, named, absent = ADVICE[case]
    compiled, line = function(tmp_path, code, underlined)
    reason = BreakReason(type="a break", gb_id=BREAKS[rule])
    event = BreakEvent(frames=(line,), function=compiled, reason=reason)
    [found] = rules.check(Observation((event,), {}))
    assert found.code == rule
    assert named in found.fix and absent not in found.fix


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("return x.sum() if y is None else (x + y).sum()", False),
        ("return x if x.shape[0] == 6 else y", True),
        ("if x.shape[0] == 6:", True),
    ],
)
def test_a_test_of_no_size_fixes_none(code: str, found: bool, tmp_path: Path) -> None:
    compiled, line = function(tmp_path, code)
    event = SpecializationEvent(
        frames=(line,),
        function=compiled,
        symbol="s0",
        value="6",
        sources=("x",),
        reason="",
        marks=(),
    )
    findings = rules.check(Observation((event,), {}))
    assert bool(findings) is found
    assert all("`x.shape[0] == 6`" in each.fix for each in findings)


def recompiled(guard: Guard) -> Finding:
    event = RecompileEvent(function=OWN, frames=(OWN,), guard=guard)
    [found] = rules.check(Observation((event,), {}))
    return found


OWN = Frame("/home/me/model.py", 7, "scale", "def scale(x, n):")
NUMBER = Guard(text="n == 3", cause="value", source="n", expected="3")


@pytest.mark.parametrize("dynamic", ["False", "None"])
def test_the_arguments_are_those_of_the_function(dynamic: str, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("@torch.compile(dynamic=False)\ndef scale(x, n):\n    return x\n")
    decorated = Frame(str(file), 1, "scale", "")
    own = WrapperEvent(function=decorated, arguments={"dynamic": dynamic})
    other = WrapperEvent(function=OWN, arguments={"dynamic": "None"})
    event = RecompileEvent(function=decorated, frames=(decorated,), guard=NUMBER)
    [found] = rules.check(Observation((event, other, own), {}))
    assert found.code == "RC210" and found.remedy is not None
    settings = [setting.code for setting in found.remedy.settings]
    assert settings == ["dynamic=True"] * (dynamic == "False")


def test_a_value_from_before_a_break_is_named_in_words() -> None:
    guard = Guard(text="", cause="other", source=BEFORE_THE_BREAK)
    assert BEFORE_THE_BREAK in recompiled(guard).message
    assert f"`{BEFORE_THE_BREAK[:5]}" not in recompiled(guard).message


def test_the_limit_links_the_page_of_torch() -> None:
    event = LimitEvent(function=OWN, frames=(OWN,), guard=NUMBER, limit=8)
    [found] = rules.check(Observation((event,), {}))
    assert found.code == "RC290"
    assert found.page is not None and found.page.endswith("gb0039.html")
    assert not any("http" in line for line in found.evidence)
