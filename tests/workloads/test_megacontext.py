"""megacontext: the micro-step and the session, against the original."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchproof.targets.workloads import (
    megacontext,
    megacontext_nets,
    megacontext_original,
    megacontext_session,
    megacontext_step,
)
from torchproof.targets.workloads.megacontext_session import Allocator
from torchproof.targets.workloads.megacontext_step import Entry, WorkingContext

SIZE = megacontext.SIZES["tiny"]
EXACT = {"rtol": 1e-9, "atol": 1e-9}
ROUNDED = {"rtol": 1e-5, "atol": 1e-6}  # logits are float32, whatever the weights are


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """What a workload compiles itself is compiled in the observed child alone."""
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


# -- the numbers the system is known by ------------------------------------------------


def test_base_is_the_known_profile() -> None:
    with torch.device("meta"):
        nets = megacontext_nets.Nets(megacontext.SIZES["base"])
    counts = [sum(p.numel() for p in net.parameters()) for net in nets.children()]
    assert counts == [185_597_952, 16_517_376, 16_524_289]
    widths = megacontext_step.widths(megacontext.SIZES["base"], 2048)
    assert widths == list(range(1831, 1520, -31))
    assert len(widths) == 11


# -- the micro-step --------------------------------------------------------------------


def doubled(module: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.1)
    return module.double()


def inputs(
    samples: int, level_2_share: float, width: int = 150
) -> tuple[Tensor, list[list[WorkingContext]], Tensor]:
    """Tokens, plans and packed working contexts."""
    size, draw = replace(SIZE, level_2_share=level_2_share), random.Random(3)
    torch.manual_seed(2)
    tokens = torch.randint(SIZE.vocabulary, (samples, SIZE.length))
    plans = [
        megacontext_step.plan(size, SIZE.length, width, draw) for _ in range(samples)
    ]
    return tokens, plans, megacontext_step.pack(plans, SIZE.length, width)


def test_micro_step_equals_the_original() -> None:
    fixed = doubled(megacontext_step.MicroStep(SIZE))
    original = megacontext_original.MicroStep(SIZE).double()
    original.load_state_dict(fixed.state_dict())
    tokens, _, entries = inputs(2, level_2_share=0.5)
    ours, theirs = fixed(tokens, entries), original(tokens, entries)
    torch.testing.assert_close(ours.loss, theirs.loss, **ROUNDED)
    torch.testing.assert_close(ours.nll, theirs.nll, **ROUNDED)
    torch.testing.assert_close(ours.scores, theirs.scores, **ROUNDED)
    ours.loss.backward()
    theirs.loss.backward()
    others = dict(original.named_parameters())
    for name, parameter in fixed.named_parameters():
        torch.testing.assert_close(parameter.grad, others[name].grad, **ROUNDED)
        assert parameter.grad.abs().sum() > 0, name


def test_sample_does_not_depend_on_its_batch() -> None:
    step = doubled(megacontext_step.MicroStep(SIZE))
    tokens, _, entries = inputs(4, level_2_share=0.5)
    filled_up = (entries < 0).any(dim=2)
    assert filled_up.any()
    together = step(tokens, entries)
    alone = [step(tokens[i : i + 1], entries[i : i + 1]) for i in range(4)]
    losses = torch.stack([one.loss for one in alone])
    torch.testing.assert_close(together.loss, losses.mean(), **ROUNDED)
    for field in ("nll", "scores"):
        rows = torch.cat([getattr(one, field) for one in alone])
        torch.testing.assert_close(getattr(together, field), rows, **ROUNDED)


def test_entry_predicts_the_token_after_its_span() -> None:
    tokens, plans, entries = inputs(3, level_2_share=0.5)
    context = megacontext_nets.read(
        torch.zeros(3, 252, SIZE.dim), entries, SIZE.length, SIZE
    )
    logits = torch.randn(*context.positions.shape, SIZE.vocabulary)
    losses, present = megacontext_step.token_losses(logits, tokens, context)
    logits, levels = logits.unflatten(0, entries.shape[:2]), set()
    for row in ((sample, i + 1) for sample in range(3) for i in range(SIZE.variants)):
        plan = plans[row[0]][row[1] - 1]
        for at, entry in enumerate(plan.entries):
            behind = plan.span(entry).stop
            levels.add(entry.level)
            assert present[row][at] == (behind < SIZE.length)
            if behind < SIZE.length:
                expected = F.cross_entropy(logits[row][at], tokens[row[0], behind])
                torch.testing.assert_close(losses[row][at], expected)
        assert not present[row][len(plan) :].any()
    assert levels == {0, 1, 2}


def test_no_entry_sees_the_token_it_predicts() -> None:
    step = doubled(megacontext_step.MicroStep(SIZE))
    tokens, _, entries = inputs(1, level_2_share=1.0)
    changed = tokens.clone()
    changed[0, 100] = (changed[0, 100] + 1) % SIZE.vocabulary
    seen = []
    for each in (tokens, changed):
        context = megacontext_nets.read(step.pool(each), entries, SIZE.length, SIZE)
        seen.append(step.nets.base(context.x, context.turn))
    same = (seen[0] == seen[1]).all(dim=-1).unflatten(0, entries.shape[:2])
    before = (context.ends <= 100) & context.present
    assert same[before].all()
    assert not same[(context.ends > 100) & context.present].any()


@pytest.mark.parametrize(
    ("module", "trained"),
    [
        (megacontext, {"base", "gist", "lens"}),
        (megacontext_original, {"base"}),
    ],
)
def test_optimizer_step_trains_these_nets(module: object, trained: set) -> None:
    step, calls = module.make(train=True)
    before = {name: p.detach().clone() for name, p in step.named_parameters()}
    optimizer = module.optimizer(step)
    step(*calls[0]).loss.backward()
    optimizer.step()
    changed = {
        name.split(".")[1]
        for name, p in step.named_parameters()
        if not torch.equal(p, before[name])
    }
    assert changed == trained


# -- the session -----------------------------------------------------------------------


def covers(context: WorkingContext) -> bool:
    tokens = [token for entry in context.entries for token in context.span(entry)]
    return tokens == list(range(context.tokens))


@pytest.mark.parametrize("seed", range(2))
def test_random_edits_keep_the_sequence_covered(seed: int) -> None:
    draw = random.Random(seed)
    context = WorkingContext(draw.choice([2, 3]))
    recent = draw.randrange(1, 10)
    for _ in range(400):
        places_ = context.collapsible(recent)
        gists = [i for i, entry in enumerate(context.entries) if entry.level]
        edit = draw.choice(["append", "collapse", "collapse", "collapse", "expand"])
        if edit == "collapse" and places_:
            context.collapse(draw.choice(places_))
        elif edit == "expand" and gists:
            context.expand(draw.choice(gists))
        else:
            context.append(draw.randrange(1, 20))
        assert covers(context)
        tail = context.entries[-recent:]
        assert all(entry.level == 0 for entry in tail)
        slots = context.slots(4096)
        assert len(set(slots)) == len(slots)
    while old := context.collapsible(recent):
        context.collapse(old[0])
    assert covers(context)
    assert context.entries[0].level == 2


def test_allocator_edits_by_score() -> None:
    context = WorkingContext(block=4)
    context.append(40)
    for place_ in (0, 1, 2):
        context.collapse(place_)  # three gists, then tokens 12 to 39
    scores = [0.0] * len(context)
    scores[0], scores[1] = 0.2, 0.9
    scores[7:11] = [-0.5] * 4  # tokens 16 to 19
    scores[27:31] = [-1.0] * 4  # tokens 36 to 39, which are recent
    allocator = Allocator(budget=len(context), recent=8)
    assert allocator.refocus(context, scores) == 2
    assert context.entries[:5] == [Entry(1, 0), *(Entry(0, i) for i in range(4, 8))]
    assert Entry(1, 4) in context.entries
    assert Entry(1, 9) not in context.entries
    assert covers(context)


def sessions() -> tuple[megacontext_session.Session, megacontext_session.Session]:
    """Both forms with the same weights, large enough for telling scores."""
    fixed = megacontext_session.Session(SIZE, SIZE.length, torch.float64)
    original = megacontext_original.Session(SIZE, SIZE.length, torch.float64)
    doubled(fixed)
    original.load_state_dict(fixed.state_dict())
    return fixed, original


def test_session_equals_the_original() -> None:
    fixed, original = sessions()
    edited = False
    for (tokens,) in megacontext_session.calls(SIZE, SIZE.length, "cpu"):
        before = [e for e in fixed.context.entries if e.level]
        torch.testing.assert_close(fixed(tokens), original(tokens), **ROUNDED)
        assert fixed.context.entries == original.context.entries
        assert covers(fixed.context)
        assert fixed.context.tokens - len(fixed.context) > 0
        assert len(fixed.context) <= fixed.allocator.budget
        edited |= not set(before) <= {e for e in fixed.context.entries if e.level}
    assert edited


def test_incremental_gists_equal_those_made_at_once() -> None:
    grown, _ = sessions()
    whole = megacontext_session.Session(SIZE, SIZE.length, torch.float64)
    whole.load_state_dict(grown.state_dict())
    tokens = torch.randint(SIZE.vocabulary, (SIZE.length + 30,))
    grown(tokens[:-30])
    grown(tokens[-30:])
    whole(tokens)
    torch.testing.assert_close(grown.pool, whole.pool, **EXACT)
    assert (whole.pool != 0).any(dim=1).sum() == 222 + 56 + 14
    logits = whole(tokens[:1])
    whole.restart()
    whole(tokens)
    torch.testing.assert_close(whole(tokens[:1]), logits, **EXACT)
    with pytest.raises(ValueError, match="full"):
        whole(torch.zeros(whole.limit, dtype=torch.long))
