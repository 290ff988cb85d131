"""What a proof counts and when it objects, on hand-made behaviours."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import Any

import numpy
import pytest
import torch

from torchproof.fixing.behaviour import (
    Behaviour,
    Outcome,
    attributes_of,
    behaviour,
    with_unseen,
)
from torchproof.fixing.equality import Reference, equality, screened
from torchproof.fixing.printed import collected_text
from torchproof.records import Frame
from torchproof.targets import Loaded
from torchproof.torch_private import comparison

OUTPUT = torch.tensor([1.0, 2.0])
ANSWERS = {"call 0: output": OUTPUT, "call 0: argument[0]": OUTPUT}
FORMS = comparison.forms_of({"call 0: output": OUTPUT}, {})
UNSEEN = {
    "zeros in call 0": Outcome({"call 0: output": OUTPUT}),
    "a NaN in call 0": Outcome(error="ValueError", refused=True),
}
EAGER = Behaviour(
    {**ANSWERS, **{f"form of {name}": form for name, form in FORMS.items()}},
    random=("a",),
    text=("seen",),
    unseen=UNSEEN,
)
REFERENCE = Reference(EAGER, None, [], None, compiled_text=("seen",))


def test_the_same_behaviour_has_no_problem() -> None:
    found = equality(REFERENCE, EAGER, EAGER, "eager")
    assert found.problems == () and found.unsafe == ()
    assert (found.compared, found.unseen, found.exceptions) == (2, 2, 1)


def test_only_inputs_that_both_ran_are_counted() -> None:
    first = dict(list(UNSEEN.items())[:1])
    found = equality(
        REFERENCE, dataclasses.replace(EAGER, unseen=first), EAGER, "eager"
    )
    assert (found.unseen, found.exceptions) == (1, 0)


def test_an_input_that_is_not_refused_any_more_is_a_problem() -> None:
    accepted = {**UNSEEN, "a NaN in call 0": Outcome({"call 0: output": OUTPUT})}
    edited = dataclasses.replace(EAGER, unseen=accepted)
    assert (
        "raises ValueError" in equality(REFERENCE, edited, EAGER, "eager").problems[0]
    )
    assert "compiled" in equality(REFERENCE, EAGER, edited, "eager").problems[0]


def test_other_values_are_a_problem_and_lost_text_is_unsafe() -> None:
    other = dataclasses.replace(
        EAGER, answers={**ANSWERS, "call 0: output": OUTPUT * 2}
    )
    assert "results differ" in equality(REFERENCE, other, EAGER, "eager").problems[0]
    quiet = dataclasses.replace(EAGER, text=())
    assert "not print" in equality(REFERENCE, EAGER, quiet, "inductor").unsafe[0]
    drawn = dataclasses.replace(EAGER, random=("b",))
    assert "random" in equality(REFERENCE, drawn, EAGER, "eager").unsafe[0]


def test_the_name_of_a_gradient_is_no_text_of_the_program() -> None:
    def said(name: str, text: str = "mean") -> tuple[str, ...]:
        return (f"{text} tensor(0.5, grad_fn=<{name}Backward0>)",)

    reference = dataclasses.replace(REFERENCE, compiled_text=said("Sum"))
    for text, is_lost in (("mean", False), ("sum", True)):
        shown = dataclasses.replace(EAGER, text=said("CompiledFunction", text))
        found = equality(reference, EAGER, shown, "aot_eager")
        assert bool(found.unsafe) is is_lost


def test_calls_that_draw_other_numbers_when_compiled_are_unsafe() -> None:
    two = {"call 0: output": OUTPUT, "call 1: output": OUTPUT}
    eager = Behaviour(two, random=("a", "b"), text=())
    reference = Reference(eager, None, [], None, draws=True)
    other = {**two, "call 1: output": OUTPUT * 2}
    compiled = Behaviour(other, random=("a", "c"), text=())
    found = equality(reference, eager, compiled, "eager")
    assert found.problems == () and "compiled, it draws" in found.unsafe[0]
    # With the same numbers, or if no call is left to compare, it is a difference.
    for random in (("a", "b"), ("c", "d")):
        shown = dataclasses.replace(compiled, random=random)
        assert equality(reference, eager, shown, "eager").problems
    wrong = dataclasses.replace(compiled, answers={**other, "call 0: output": -OUTPUT})
    assert equality(reference, eager, wrong, "eager").problems


def test_text_that_is_logged_once_is_collected_in_every_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @functools.lru_cache
    def warning_once(logger: logging.Logger, text: str) -> None:
        logger.warning(text)

    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)
    for _ in range(2):
        with collected_text() as lines:
            logging.getLogger("rewritten").warning_once("seen")
            logging.getLogger("rewritten").warning_once("seen")
        assert lines == ["rewritten WARNING: seen"]


class Counter(torch.nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.tensor(self.calls)


def test_variations_do_not_depend_on_earlier_calls() -> None:
    def target() -> tuple[Loaded, Counter]:
        net = Counter()
        return Loaded(net, [(torch.ones(2, 4),)], None, Frame("m.py", 1, "make")), net

    found = with_unseen(Behaviour({}, random=(), text=()), target, train=False)
    outputs = [each.answers["call 0: output"].item() for each in found.unseen.values()]
    assert len(outputs) > 5 and set(outputs) == {1}


class Plain(torch.nn.Module):
    def __init__(self, step: int = 1) -> None:
        super().__init__()
        self.calls, self._step = 0, step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self._step
        return x


def all_of(net: torch.nn.Module) -> Behaviour:
    made = [(torch.ones(2, 4),)] * 2
    loaded = Loaded(net, made, None, Frame("m.py", 1, "make"))
    shown = behaviour(loaded, net, train=False)
    return with_unseen(shown, lambda: (loaded, net), train=False)


@pytest.mark.parametrize(("step", "is_same"), [(1, True), (2, False)])
def test_what_a_module_counts_has_to_stay(step: int, is_same: bool) -> None:
    reference = Reference(all_of(Plain()), None, [], None)
    shown = [all_of(Plain(step)) for _ in range(2)]
    assert (equality(reference, *shown, "eager").problems == ()) is is_same


def test_a_screen_compares_only_the_first_compiled_call() -> None:
    later = {"call 1: output": OUTPUT, "buffer seen": OUTPUT}
    eager = dataclasses.replace(
        EAGER,
        answers={**EAGER.answers, **later},
        attributes={"count": 2},
        random=("a", "b"),
    )
    reference = dataclasses.replace(REFERENCE, eager=eager)
    first = dataclasses.replace(
        EAGER,
        answers={**EAGER.answers, "buffer seen": OUTPUT + 1},
        attributes={"count": 1},
        unseen={},
    )
    assert screened(reference, eager, first, "eager").problems == ()
    wrong = dataclasses.replace(first, answers={**ANSWERS, "call 0: output": -OUTPUT})
    assert "call 0" in screened(reference, eager, wrong, "eager").problems[0]
    edited = dataclasses.replace(eager, attributes={"count": 3})
    assert "count" in screened(reference, edited, first, "eager").problems[0]
    reference = dataclasses.replace(reference, draws=True)
    other = dataclasses.replace(wrong, random=("c",))
    found = screened(reference, eager, other, "eager")
    assert found.problems == () and "random" in found.unsafe[0]


def test_a_number_of_numpy_is_the_same_as_one_of_python() -> None:
    def kept(value: Any) -> Any:
        module = torch.nn.Module()
        module.length = value
        return attributes_of(module)

    assert kept(numpy.lcm(4, 6)) == kept(12) != kept(13)
