"""A step is marked once, with no backward pending, and counts what it runs."""

from __future__ import annotations

import json
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime import steps
from torchproof.runtime.steps import StepError, step
from torchproof.torch_private import step_marks as trees

HERE = Path(__file__).name


def line_of(text: str) -> int:
    """The one line of this file that ends with the text."""
    lines = Path(__file__).read_text().splitlines()
    [found] = [n for n, line in enumerate(lines, 1) if line.endswith(text)]
    return found


# -- where a step begins ---------------------------------------------------------------


def test_a_step_is_marked_once_however_many_calls_it_makes(
    net: nn.Module, marks: list[str]
) -> None:
    for _ in range(3):
        with torchproof.step() as begun, torch.no_grad():
            begun.run(net, torch.ones(2, 4))
            torchproof.step.run(net, torch.ones(3, 4))
    assert len(marks) == 3
    counts = step.stats().inference
    assert (counts.steps, counts.calls, counts.marks) == (3, 6, 3)


def test_a_step_within_a_step_is_part_of_it(net: nn.Module, marks: list[str]) -> None:
    @torchproof.step
    def inner(x: Tensor) -> Tensor:
        return step.run(net, x)

    with torch.no_grad(), torchproof.step() as outer:
        with torchproof.step() as again:
            assert again is outer
        raw = inner(torch.ones(2, 4))
        kept = outer.keep(raw)
    assert len(marks) == 1 and kept is not raw
    assert step.stats().inference.clones == 1  # not by `inner`, whose step goes on


def test_the_next_step_waits_for_the_backward(net: nn.Module, marks: list[str]) -> None:
    with step() as begun:
        loss = begun.run(net, torch.ones(2, 4)).sum()  # the forward
    with pytest.raises(StepError) as raised, step():  # the mark
        pass
    message = str(raised.value)
    assert f"{HERE}:{line_of('  # the forward')}" in message
    assert f"{HERE}:{line_of('  # the mark')}" in message
    assert "Linear" in message and "\n" not in message
    assert len(marks) == 1
    loss.backward()
    with step():
        pass
    assert len(marks) == 2


@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_dropped_is_not_waited_for(net: nn.Module, compiled: bool) -> None:
    fn = torch.compile(net, backend="aot_eager") if compiled else net
    for _ in range(2):
        with step() as begun:
            output = begun.run(fn, torch.ones(2, 4))
            far = (output * 2).sum()
        del output  # its graph lives on in `far`
        with pytest.raises(StepError, match=r"backward\(\)"), step():
            pass
        del far
        with step():
            pass


@pytest.mark.parametrize("compiled", [False, True])
def test_kept_outputs_do_not_hold_up_steps_after_the_backward(
    net: nn.Module, compiled: bool
) -> None:
    fn = torch.compile(net, backend="aot_eager") if compiled else net
    history = []
    for _ in range(3):
        with step() as begun:
            loss = begun.keep(begun.run(fn, torch.ones(2, 4)).sum())
        loss.backward()
        history.append(loss)
    assert step.stats().training.steps == 3


def test_a_backward_through_one_output_is_enough() -> None:
    weight = torch.ones(3, requires_grad=True)

    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * weight).sum(), weight.exp()

    with step() as begun:
        loss, scores = begun.run(two, torch.ones(3))
    loss.backward()
    with step():
        assert scores.requires_grad


def test_a_forward_outside_of_run_is_seen_in_the_graph_trees(
    net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = 'File "model.py", line 3, in forward\n  File "model.py", line 9, in head'
    node = type("Node", (), {"stack_traces": [None, trace]})()
    calls = [1]
    monkeypatch.setattr(trees, "pending_forward", lambda: node)
    monkeypatch.setattr(trees, "compiled_calls", lambda: calls[0])
    with pytest.raises(StepError, match=r"forward at model\.py:9\b.*\brun\(\)"), step():
        pass
    # Of what `run` called, its autograd graph says more than the trees do.
    monkeypatch.setattr(trees, "pending_forward", lambda: None)
    with torch.no_grad(), step() as begun:
        begun.run(net, torch.ones(1, 4))
    monkeypatch.setattr(trees, "pending_forward", lambda: node)
    with step():
        pass
    calls[0] += 1
    with pytest.raises(StepError, match=r"\brun\(\)"), step():
        pass


class Saving(torch.autograd.Function):
    """Saves its output, which leads back to it, and something in between."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        output = x.exp()
        ctx.save_for_backward(output, x * 2)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        output, _ = ctx.saved_tensors
        return output * gradients[0]


@pytest.mark.parametrize("dropped", [True, False])
def test_what_is_saved_is_held_until_its_backward(
    dropped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "may_overwrite_saved_tensors", lambda: True)
    with step() as begun:
        loss = begun.run(Saving.apply, torch.ones(3, requires_grad=True)).sum()
    [forward] = steps._process.thread.pending()
    backward = forward.backward()
    assert backward is not None
    saved = [weakref.ref(each) for each in backward.saved]
    assert len(saved) == 2
    del backward
    if not dropped:
        loss.backward()
    del loss
    assert [each() for each in saved] == [None, None]
    assert steps._process.thread.pending() == []


def test_a_mark_by_somebody_else_inside_a_step(
    net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [7]
    monkeypatch.setattr(trees, "marks", lambda: made[0])
    with torch.no_grad(), step() as begun:
        begun.run(net, torch.ones(1, 4))
        made[0] += 2
        begun.run(net, torch.ones(1, 4))
    assert step.stats().inference.marks == 1 + 2
    for _ in range(2):
        with pytest.raises(StepError, match="cudagraph_mark_step_begin"), step():
            output = step.run(net, torch.ones(2, 4))
            made[0] += 1
            step.run(net, output)
        del output
    assert step.stats().training.marks == 2 * (1 + 1)


def test_marks_are_those_that_torch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with step() as begun:
        before = trees.marks()
        torch.compiler.cudagraph_mark_step_begin()
        assert trees.marks() == before + 1
    assert begun.counts.marks == 2


def test_a_step_that_fails_ends(net: nn.Module, marks: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), step():
        1 / 0  # noqa: B018
    with step():
        pass
    assert len(marks) == 2


# -- what it runs ----------------------------------------------------------------------


def test_training_and_inference_are_counted_apart(net: nn.Module) -> None:
    with step() as begun:
        first = begun.run(net, torch.ones(2, 4))
        begun.run(net, first).sum().backward()
    assert begun.counts.reentries == 1  # before the backward
    for rows in (2, 2, 5):
        with torch.no_grad(), step() as begun:
            begun.keep(begun.run(net, torch.ones(rows, 4)))
    stats = step.stats()
    assert (stats.training.steps, stats.inference.steps) == (1, 3)
    assert (stats.training.bytes_cloned, stats.inference.bytes_cloned) == (0, 144)
    stats_json = json.loads(json.dumps(stats.to_json()))
    assert stats_json["inference"]["called_with"] == [
        {"name": "Linear", "shapes": "2x4", "calls": 2},
        {"name": "Linear", "shapes": "5x4", "calls": 1},
    ]
    header, _, _, inference = str(stats).splitlines()[:4]
    assert header.split()[:5] == ["steps", "calls", "reentries", "marks", "clones"]
    assert inference.split() == ["inference", "3", "3", "0", "3", "3", "144"]


def test_run_belongs_to_a_step(net: nn.Module) -> None:
    with pytest.raises(StepError, match=rf"{HERE}:\d+: run\(\) "):
        step.run(net, torch.ones(2, 4))
    with pytest.raises(StepError, match=rf"{HERE}:\d+: keep\(\) "):
        step.keep(torch.ones(1))
    with step() as begun:
        pass
    with pytest.raises(StepError, match=rf"{HERE}:\d+: run\(\) .*{HERE}:\d+"):
        begun.run(net, torch.ones(2, 4))


# -- threads and compilers -------------------------------------------------------------


def test_no_mark_falls_into_the_step_of_another_thread(marks: list[str]) -> None:
    def other() -> None:
        with step() as begun:
            seen.append(begun.counts.marks_left_out)

    seen: list[int] = []
    with step():
        worker = threading.Thread(target=other, name="other")
        worker.start()
        worker.join()
    worker = threading.Thread(target=other, name="later")
    worker.start()
    worker.join()
    assert seen == [1, 0]
    assert marks == ["MainThread", "later"]


def test_a_backward_pending_in_another_thread_is_its_own(
    net: nn.Module, marks: list[str]
) -> None:
    with step() as begun:
        loss = begun.run(net, torch.ones(2, 4)).sum()
    worker = threading.Thread(target=step(lambda: None), name="other")
    worker.start()
    worker.join()
    assert marks == ["MainThread"]  # the other's mark would take what `loss` needs
    assert step.stats().inference.marks_left_out == 1
    loss.backward()


def test_a_step_inside_a_compiled_function_is_part_of_its_graph(
    net: nn.Module, marks: list[str]
) -> None:
    @step
    def inner(x: Tensor) -> Tensor:
        return step.run(net, x)

    def outer(x: Tensor) -> Tensor:
        with step() as begun:
            return step.keep(begun.keep(begun.run(inner, x)))

    x = torch.ones(2, 4)
    compiled = torch.compile(outer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), net(x))
    assert marks == []


def test_status_takes_steps_and_graphed_steps() -> None:
    step.reset()
    with step() as s:
        s.run(torch.cos, torch.ones(2))
    counts = torchproof.status(torchproof.step)
    assert counts == step.stats() and counts.inference.calls == 1
    graphed = torchproof.graph(nn.Linear(2, 2).eval(), (torch.ones(1, 2),))
    graphed(torch.ones(1, 2))
    counted = torchproof.status(graphed)
    assert counted == graphed.status() and counted.calls == 1
