"""megacontext with CUDA graphs: every call of a net is in a step, and nothing it hands
out or holds lies in a graph's memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchproof.runtime.steps import StepError, step
from torchproof.targets.workloads import (
    megacontext,
    megacontext_session,
    megacontext_step,
)
from torchproof.torch_private.trees import tensors

SIZE = megacontext.SIZES["tiny"]
NETS = ("base", "gist", "lens")


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """Nothing is compiled: who calls what is the same."""
    torch.compiler.set_stance("force_eager")
    step.reset()
    yield
    step.reset()
    torch.compiler.set_stance("default")


class Watch:
    """Who calls the nets, and where what they compute lies."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()  # of each net, wherever from
        self.marks = 0
        self.outputs: list[Any] = []  # held, so that no address is used twice
        self.inside = False
        self._run = step.run
        monkeypatch.setattr(step, "run", self.run)
        monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", self.mark)

    def mark(self) -> None:
        self.marks += 1

    def run(self, fn: Any, *args: Any) -> Any:
        self.inside = True
        self.outputs.append(self._run(fn, *args))
        self.inside = False
        return self.outputs[-1]

    def graph_memory(self) -> set[int]:
        return {address(t) for t in tensors(self.outputs)}

    def taken(self) -> tuple[dict[str, int], int]:
        """Calls and marks since the last time this was asked."""
        found = dict(self.calls), self.marks
        self.calls.clear()
        self.marks = 0
        return found


class Mock(nn.Module):
    """In the place of a net: calls it, and tells."""

    def __init__(self, net: nn.Module, name: str, watch: Watch) -> None:
        super().__init__()
        self.net, self.name, self.watch = net, name, watch
        if name == "base":  # read on its own, outside of the net's call
            self.embedding = net.embedding

    def forward(self, *args: Any) -> Any:
        assert self.watch.inside, f"{self.name} is called outside of a region"
        self.watch.calls[self.name] += 1
        return self.net(*args)


def mocked(model: Any, watch: Watch) -> Any:
    for name in NETS:
        setattr(model.nets, name, Mock(getattr(model.nets, name), name, watch))
    return model


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def clones() -> tuple[int, int]:
    """In training and in inference, since the last time this was asked."""
    stats = step.stats()
    step.reset()
    return stats.training.clones, stats.inference.clones


# -- calls, marks and copies -----------------------------------------------------------


def test_training_calls_each_net_in_one_step(watch: Watch) -> None:
    model, calls = megacontext.make(train=True)
    mocked(model, watch)
    for call in calls[:2]:
        model.zero_grad(set_to_none=True)
        model(*call).loss.backward()
        assert watch.taken() == ({"gist": 2, "base": 1, "lens": 1}, 1)
        assert step.stats().training.reentries == 1  # GistNet, for the second level
        assert step.stats().training.calls == 4
        assert clones() == (3, 0)  # loss, nll and scores


def test_gradients_add_up_outside_of_graph_memory(watch: Watch) -> None:
    model, calls = megacontext.make(train=True)
    weights = len(list(model.parameters()))
    for copies in (3, 3 + weights, 3):
        model(*calls[0]).loss.backward()
        assert clones() == (copies, 0)


def test_prefill_and_allocator_call_each_net_in_one_step(watch: Watch) -> None:
    model, calls = megacontext.make()
    mocked(model, watch)
    model(*calls[0])  # the prompt: gists of both levels, a look at the scores
    assert watch.taken() == ({"gist": 2, "lens": 1, "base": 1}, 1)
    assert clones() == (0, 2)  # scores and logits
    tokens = len(calls[1][0])
    assert 2 * tokens == SIZE.refocus_every
    model(*calls[1])
    assert watch.taken() == ({"gist": 2 * tokens, "base": 1}, 1)
    assert clones() == (0, 1)
    model(*calls[2])  # the allocator is due
    assert watch.taken() == ({"gist": 2 * tokens, "lens": 1, "base": 1}, 1)
    assert clones() == (0, 2)


# -- who holds what --------------------------------------------------------------------


def held(session: megacontext_session.Session) -> dict[str, Tensor]:
    """The tensors in a session's attributes, but for its weights and its pool."""
    return {k: v for k, v in vars(session).items() if isinstance(v, Tensor)}


def in_graphs(values: dict[str, Tensor], watch: Watch) -> set[str]:
    memory = watch.graph_memory()
    return {name for name, tensor in values.items() if address(tensor) in memory}


def test_outputs_of_training_are_outside_graph_memory(watch: Watch) -> None:
    model, calls = megacontext.make(train=True)
    output = model(*calls[0])
    assert in_graphs(output._asdict(), watch) == set()
    assert {k for k, v in vars(model).items() if isinstance(v, Tensor)} == set()


def test_tensors_of_a_session_are_outside_graph_memory(watch: Watch) -> None:
    session, calls = megacontext.make()
    logits = [session(*call) for call in calls[:3]]
    assert set(held(session)) == {"scores", "drift"}
    assert in_graphs(held(session), watch) == set()
    assert in_graphs({str(i): x for i, x in enumerate(logits)}, watch) == set()


def test_scores_held_without_a_copy_are_found(watch: Watch) -> None:
    session, calls = megacontext.make()
    session.keep = lambda value: value
    session(*calls[0])
    assert in_graphs(held(session), watch) == {"scores"}


# -- steps that begin in the wrong place -----------------------------------------------


def test_micro_step_before_the_backward_of_the_last_is_refused(watch: Watch) -> None:
    model, calls = megacontext.make(train=True)
    first = model(*calls[0])
    with pytest.raises(StepError, match=r"MicroStep\.gist\b.*\bbackward\(\)"):
        model(*calls[1])
    assert watch.marks == 1
    first.loss.backward()
    model(*calls[1])
    assert watch.marks == 2


# -- few shapes, the same answers ------------------------------------------------------


def test_all_widths_and_batches_are_few_shapes() -> None:
    model, calls = megacontext.make(train=True)
    filled = [model.filled(*call) for call in calls]
    assert {tuple(tokens.shape) for tokens, _ in filled} == {(2, 192)}
    assert {entries.shape[2] for _, entries in filled} == {144, 160, 176}
    base = megacontext.SIZES["base"]
    widths = megacontext_step.widths(base, base.length)
    wide = {-(-width // base.grain) * base.grain for width in widths}
    assert wide == {1536, 1664, 1792, 1920}
    with pytest.raises(ValueError, match=r"\bbatch\b.*\b3\b.*\b2\b"):
        model(*megacontext.make(train=True, batch=3)[1][0])


@pytest.mark.parametrize("number", [0, -1])
def test_padding_changes_neither_answers_nor_gradients(number: int) -> None:
    model, calls = megacontext.make(train=True)
    plain, _ = megacontext.make(train=True, compiled=False)
    call = calls[number]
    assert (model.filled(*call)[1] != -1).sum() == (call[1] != -1).sum()
    assert len(call[0]) == (1 if number else SIZE.batch)
    found = []
    for one in (model.double(), plain.double()):
        output = one(*call)
        output.loss.backward()
        found.append([*output, *(p.grad for p in one.parameters())])
    assert found[0][2].shape == call[1].shape
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_session_with_and_without_graphs_agrees(watch: Watch) -> None:
    compiled, calls = megacontext.make()
    plain, _ = megacontext.make(compiled=False)
    assert not getattr(type(plain), "compiles_itself", False)
    for call in calls[:4]:
        torch.testing.assert_close(compiled(*call), plain(*call))
        assert compiled.context.entries == plain.context.entries
    assert compiled.drift is not None
    torch.testing.assert_close(compiled.drift, plain.drift)
