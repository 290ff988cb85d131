"""Tensors that outlive their memory in a CUDA graph, which the CPU simulates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fix_runs import fixed, verified
from sites import program, rewritten, site

from torchproof.fixing.proof import Prover
from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.lifetimes import clone, gradient_step, mark_first
from torchproof.observe import AuditResult, audit
from torchproof.records import Observation, Overlay, Part, UserError
from torchproof.targets import Options, parse

RULES = Path(__file__).resolve().parent.parent / "rules"
LINES = [
    ("outs.append(f(x))", "outs.append(f(x).clone())"),
    ("self.scores = self.net(x)", "self.scores = self.net(x).clone()"),
    ("h = cell(x, h)", "h = cell(x, h).clone()"),
    ("rows[i] = f(x)[0]", "rows[i] = f(x)[0].clone()"),
    ("outs = [f(x) for x in xs]", "outs = [f(x).clone() for x in xs]"),
    ("return f(x)", "return f(x).clone()"),
    ("yield f(x)", "yield f(x).clone()"),
]
REFUSED = [
    ("self.scores = f(x).clone()", "is a copy in the graph"),
    ("total += f(x)", "does not show which tensor it keeps"),
    ("first, *rest = f(x)", "keeps more than tensors in variables"),
    ("pair = (f(x), f(y))", "may be more than a tensor"),
    ("y = f(x); z = g(y)", "is more than one statement"),
]


@pytest.mark.parametrize(("before", "after"), LINES)
def test_a_copy_is_kept(before: str, after: str) -> None:
    text = f"def drive(self, f, x, xs):\n    {before}  # <-\n"
    assert after in rewritten(clone, text, "CG301").text


def test_unpacked_outputs_are_copied() -> None:
    text = "def drive(f, x):\n    a, b = f(x)  # <-\n    return a\n"
    wanted = "    a, b = f(x)\n    a, b = a.clone(), b.clone()\n"
    assert wanted in rewritten(clone, text, "CG301").text


@pytest.mark.parametrize(("line", "why"), REFUSED)
def test_what_is_kept_has_to_be_a_tensor(line: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        rewritten(clone, f"def drive(self, f, x):\n    {line}  # <-\n", "CG301")


WRITTEN = [
    ("self.last = y", "y.mul_(2)"),
    ("self.last = y.detach()", "y[0] = 0"),
    ("outs.append(y[0])", "y += 1"),
    ("self.last = y", "self.last.zero_()"),
]


@pytest.mark.parametrize(("keeps", "writes"), WRITTEN)
def test_a_copy_would_not_see_later_changes(keeps: str, writes: str) -> None:
    text = f"def f(self, y, outs):\n    {keeps}  # <-\n    if outs:\n        {writes}\n"
    with pytest.raises(Refused, match="is changed in place after it is kept"):
        rewritten(clone, text, "CG301")
    before = f"def f(self, y, outs):\n    {writes}\n    {keeps}  # <-\n"
    assert ".clone()" in rewritten(clone, before, "CG301").text


ACCUMULATES = """
def drive(net, step, batches, optimizer):
    for i, x in enumerate(batches):
        step(x).backward()  # <-
        if i % 2:  # every second batch
            optimizer.step()
            optimizer.zero_grad()
"""


def test_each_pass_is_a_step_that_keeps_gradients() -> None:
    at = site(ACCUMULATES, "CG302")
    message = "`net.fc.weight.grad`, `net.head.bias.grad` are used"
    draft = gradient_step(replace(at, finding=replace(at.finding, message=message)))
    assert draft.text == program(
        """
        import torchproof
        def drive(net, step, batches, optimizer):
            for i, x in enumerate(batches):
                with torchproof.step(parameters=net.parameters()):
                    step(x).backward()
                    if i % 2:  # every second batch
                        optimizer.step()
                        optimizer.zero_grad()
        """
    )


def test_the_innermost_loop_and_its_comments() -> None:
    at = site(
        """
        def drive(net, step, batches):
            for epoch in range(2):
                while batches:  # all
                    # one batch
                    step(batches.pop()).backward()  # <-
                    # done
        """,
        "CG302",
    )
    finding = replace(at.finding, message="`net.0.weight.grad` is used")
    draft = gradient_step(replace(at, finding=finding))
    assert draft.text == program(
        """
        import torchproof
        def drive(net, step, batches):
            for epoch in range(2):
                while batches:  # all
                    with torchproof.step(parameters=net.parameters()):
                        # one batch
                        step(batches.pop()).backward()
                        # done
        """
    )


@pytest.mark.parametrize(
    ("message", "text", "why"),
    [
        ("2 gradients are used", ACCUMULATES, "no variable leads"),
        ("`a.weight.grad`, `b.weight.grad` are", ACCUMULATES, "no one module"),
        (
            "`net.weight.grad` is",
            ACCUMULATES + "        yield x\n",
            "may be suspended within a step",
        ),
        (
            "`net.weight.grad` is",
            ACCUMULATES.replace("def drive", "async def drive"),
            "may be suspended within a step",
        ),
    ],
)
def test_steps_that_cannot_keep_gradients(message: str, text: str, why: str) -> None:
    at = site(text, "CG302")
    with pytest.raises(Refused, match=why):
        gradient_step(replace(at, finding=replace(at.finding, message=message)))


def test_a_mark_moves_before_the_forward() -> None:
    text = """
        def drive(step, xs):
            for x in xs:
                # each batch is a step
                loss = step(x)

                # the next one
                torch.compiler.cudagraph_mark_step_begin()  # <-
                loss.backward()
        """
    draft = rewritten(mark_first, text, "CG303")
    assert draft.text == program(
        """
        def drive(step, xs):
            for x in xs:
                # each batch is a step
                # the next one
                torch.compiler.cudagraph_mark_step_begin()
                loss = step(x)
                loss.backward()
        """
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("third = step(x)  # <-", "begins a step by calling compiled code"),
        (
            "torch.compiler.cudagraph_mark_step_begin()  # <-",
            "the forward is not in the block",
        ),
    ],
)
def test_other_late_backwards_are_refused(line: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        rewritten(mark_first, f"def f(step, x, loss):\n    {line}\n", "CG303")


# The proof watches lifetimes, so that the finding has to be gone.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "factory"),
    [("CG301", "bad"), ("CG302", "bad_accumulated"), ("CG303", "bad")],
)
def test_a_hazard_is_removed(code: str, factory: str, tmp_path: Path) -> None:
    text = (RULES / f"{code}.py").read_text() + f"\n\nmake = {factory}\n"
    run = fixed(tmp_path, text, as_written=True)
    (accepted,) = verified(run)
    assert accepted.codes == (code,) and accepted.tier == "safe"
    assert run.fixing is not None and run.fixing.remaining == ()


def test_an_edit_that_cannot_be_watched_is_no_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = AuditResult(Part("failed", "call 1: RuntimeError"))
    monkeypatch.setattr(audit, "audit_job", lambda job, conditions: failed)
    program = tmp_path / "model.py"
    program.touch()
    prover = Prover(parse(f"{program}:make"), Options(), tmp_path)
    observation = Observation((), {})
    original = prover.job(Overlay())
    assert prover._with_lifetimes(observation, original) is observation
    edited = prover.job(Overlay(texts={str(program): "x = 1"}))
    with pytest.raises(UserError, match="call 1: RuntimeError"):
        prover._with_lifetimes(observation, edited)
