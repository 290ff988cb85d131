"""Each rewrite on its patterns: tests/snapshots/rewrites has the edits and the reasons
of refusals, and the edited program does what the original does.

After a change that is meant: `pytest tests/fixing/test_rewrites.py --renew`.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import io
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fixing.rewrite_cases import FAMILIES, Family
from sites import function_of, site

from torchproof.fixing.rewrites import Draft, Refused

# Outputs, inputs after the call: what a program shows apart from gradients.
OBSERVED = """

def observed(*arguments):
    inputs = [a * 1 if isinstance(a, torch.Tensor) else a for a in arguments]
    outputs = step(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [a for a in (*outputs, *inputs) if isinstance(a, torch.Tensor)]
"""


@functools.cache
def drafted(family: Family, text: str) -> Draft:
    found = site(text, family.code)
    return family.rewrite(replace(found, probe=family.probe))


def edits(family: Family) -> str:
    """The edit of each case, and why the others are refused."""
    lines: list[str] = []
    for name, text in family.programs("==").items():
        draft = drafted(family, text)
        before = site(text, family.code).file.text
        diff = difflib.unified_diff(
            before.splitlines(), draft.text.splitlines(), n=1, lineterm=""
        )
        changed = [line for line in diff if not line.startswith(("---", "+++"))]
        lines += [f"== {name}: {draft.tier}", *changed]
    for name, text in family.programs("!!").items():
        with pytest.raises(Refused) as refused:
            drafted(family, text)
        lines.append(f"!! {name}: {refused.value}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", FAMILIES)
def test_edits_are_as_they_were(name: str, snapshot: Callable[..., None]) -> None:
    snapshot(f"rewrites/{name}.txt", edits(FAMILIES[name]))


def outcomes(family: Family, text: str, *, compiled: bool = False) -> list[Any]:
    """What each call returns, changes, raises and writes, and its gradients."""
    run = function_of(text + OBSERVED, "observed")
    calls = family.calls
    if compiled:
        run = torch.compile(run, backend="eager", fullgraph=True)
        calls = calls[: family.in_one_graph]
    return [outcome(family, run, call, n) for n, call in enumerate(calls)]


def outcome(family: Family, run: Any, call: tuple[Any, ...], seed: int) -> list[Any]:
    for seeded in (torch.manual_seed, random.seed, np.random.seed):
        seeded(seed)
    leaves = [call[number].clone().requires_grad_() for number in family.gradients]
    arguments = dict(enumerate(call)) | dict(zip(family.gradients, leaves, strict=True))
    log = io.StringIO()
    handler, logger = logging.StreamHandler(log), logging.getLogger("rewritten")
    logger.addHandler(handler)
    try:
        with contextlib.redirect_stdout(log):
            outputs = run(*arguments.values())
    except Exception as error:
        return [type(error), error.args, log.getvalue()]
    finally:
        logger.removeHandler(handler)
    found = [*outputs, log.getvalue()]
    if leaves:
        weights = torch.arange(1.0, 1.0 + call[0].shape[-1])
        total = sum((each * weights).nansum() for each in outputs)
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
        found += [torch.zeros(()) if g is None else g for g in gradients]
    return found


BEHAVING = [
    (name, case)
    for name, family in FAMILIES.items()
    if family.calls
    for case in family.programs("==")
]


@pytest.mark.parametrize(("name", "case"), BEHAVING)
def test_edited_program_does_the_same(name: str, case: str) -> None:
    """With both outcomes of a condition, NaN and infinities."""
    family = FAMILIES[name]
    text = family.programs("==")[case]
    draft = drafted(family, text)
    expected = outcomes(family, text)
    assert_same(expected, outcomes(family, draft.text))
    compiled = outcomes(family, draft.text, compiled=True)
    assert_same(expected[: family.in_one_graph], compiled)


def assert_same(expected: list[Any], found: list[Any]) -> None:
    for one, other in zip(expected, found, strict=True):
        for a, b in zip(one, other, strict=True):
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(a, b, equal_nan=True)
            else:
                assert a == b


def test_condition_of_several_elements_raises() -> None:
    lines = "== several\nif x > 0:  # <-\n    y = y + 1\nreturn y\n"
    family = replace(FAMILIES["branches"], cases=lines)
    (text,) = family.programs("==").values()
    step = function_of(drafted(family, text).text)
    with pytest.raises(RuntimeError):
        step(torch.ones(3), torch.ones(3))
    assert step(torch.ones(1, 1), torch.ones(3)).tolist() == [2, 2, 2]


@pytest.mark.parametrize("tier", ["safe", "unsafe"])
def test_only_unsafe_edits_draw_other_random_numbers(tier: str) -> None:
    family = FAMILIES["rate first"]
    for text in family.programs("==").values():
        draft = drafted(family, text)
        if draft.tier == tier:
            states = []
            for version in (text, draft.text):
                torch.manual_seed(0)
                function_of(version)(torch.ones(2), 0.0)
                states.append(torch.get_rng_state())
            assert torch.equal(*states) is (tier == "safe") or "draw > p" in text
