"""megacontext: what an entry sees and predicts, and the edits of a session."""

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
    """In double precision, with weights so large that scores differ."""
    torch.manual_seed(1)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.1)
    return module.double()


def inputs(
    samples: int, level_2_share: float = 0.5, width: int = 150
) -> tuple[Tensor, list[list[WorkingContext]], Tensor]:
    """Tokens, plans and packed working contexts, with gists of gists and padding."""
    size, draw = replace(SIZE, level_2_share=level_2_share), random.Random(3)
    torch.manual_seed(2)
    tokens = torch.randint(SIZE.vocabulary, (samples, SIZE.length))
    plans = [
        megacontext_step.plan(size, SIZE.length, width, draw) for _ in range(samples)
    ]
    return tokens, plans, megacontext_step.pack(plans, SIZE.length, width)


def test_entry_predicts_the_token_after_its_span() -> None:
    tokens, plans, entries = inputs(3)
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


def test_only_the_original_leaves_two_nets_untrained() -> None:
    for module, count in ((megacontext, 3), (megacontext_original, 1)):
        model, _ = module.make(train=True)
        nets = {
            id(p): name
            for name, n in model.nets.named_children()
            for p in n.parameters()
        }
        [group] = module.optimizer(model).param_groups
        trained = [nets[id(parameter)] for parameter in group["params"]]
        assert len(set(trained)) == count and "base" in trained


# -- the session -----------------------------------------------------------------------


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
    tokens = [token for entry in context.entries for token in context.span(entry)]
    assert tokens == list(range(context.tokens))


def test_incremental_gists_equal_those_made_at_once() -> None:
    grown, whole = (
        megacontext_session.Session(SIZE, SIZE.length, torch.float64) for _ in range(2)
    )
    doubled(grown)
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
