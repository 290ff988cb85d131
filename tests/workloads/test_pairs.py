"""A fixed workload computes what its original does, each sample by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from workloads.test_megacontext import doubled, inputs

from torchproof.targets.workloads import (
    arrcoc,
    arrcoc_original,
    gpt,
    gpt_original,
    megacontext,
    megacontext_original,
    megacontext_session,
    megacontext_step,
    nanovlm,
    nanovlm_original,
)

DECODER = gpt.Size(layers=2, dim=32, heads=2, vocabulary=50)
VLM = nanovlm.SIZES["tiny"]
MEGACONTEXT = megacontext.SIZES["tiny"]
ROUNDED = {"rtol": 1e-5, "atol": 1e-6}  # logits are float32, whatever the weights are


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """What a workload compiles itself runs in eager."""
    torch.manual_seed(0)
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


def ids(batch: int, length: int) -> Tensor:
    return torch.randint(DECODER.vocabulary, (batch, length))


def pictures(batch: int) -> tuple[Tensor, Tensor]:
    images, queries = arrcoc.samples(arrcoc.SIZES["tiny"], batch, "cpu")
    return images.double(), queries.double()


def captions(rows: int, length: int, images: int) -> list[nanovlm.Sample]:
    """Samples of falling length, each with so many images."""
    samples = []
    for row in range(rows):
        tokens = torch.randint(VLM.decoder.ordinary_tokens, (length - row % 4 * 3,))
        tokens[1 : 1 + images * VLM.image_tokens] = VLM.image_token
        shape = images, 3, VLM.vision.image, VLM.vision.image
        samples.append(nanovlm.Sample(tokens, [*torch.randn(shape)]))
    return samples


# -- both forms ------------------------------------------------------------------------


@dataclass
class Pair:
    """Both forms, and calls that mean the same to them."""

    fixed: nn.Module
    original: nn.Module
    calls: list[tuple[dict[str, Any], dict[str, Any]]]
    trained: str = ""  # gradients of these parameters agree
    backward: bool = True

    def __post_init__(self) -> None:
        self.original.load_state_dict(self.fixed.state_dict())


def pair_of_gpt() -> Pair:
    calls = [{"tokens": ids(3, length)} for length in (16, 9)]
    models = (
        kind(DECODER, dtype=torch.float64) for kind in (gpt.GPT, gpt_original.GPT)
    )
    return Pair(*models, [(call, call) for call in calls])


def pair_of_nanovlm(images: int, trained_positions: int = 1024) -> Pair:
    decoder = replace(VLM.decoder, positions=trained_positions)
    size, samples = replace(VLM, decoder=decoder), captions(3, 150, images)
    call = nanovlm.collate(VLM, samples)
    listed = nanovlm_original.listed(VLM, samples)
    models = nanovlm.NanoVLM(size), nanovlm_original.NanoVLM(size)
    return Pair(*models, [(call, listed)])


def pair_of_arrcoc() -> Pair:
    """Of one sample; no gradient reaches the original's scorers."""
    fixed = arrcoc.make(train=True)[0].double()
    original = arrcoc_original.ARRCOC(arrcoc.SIZES["tiny"]).double()
    call = dict(zip(("images", "queries"), pictures(1), strict=True))
    return Pair(fixed, original, [(call, call)], trained="realizer.")


def pair_of_megacontext() -> Pair:
    fixed = doubled(megacontext_step.MicroStep(MEGACONTEXT))
    original = megacontext_original.MicroStep(MEGACONTEXT).double()
    call = dict(zip(("tokens", "entries"), inputs(2)[::2], strict=True))
    return Pair(fixed, original, [(call, call)])


PAIRS: dict[str, Callable[[], Pair]] = {
    "gpt": pair_of_gpt,
    "nanovlm": lambda: pair_of_nanovlm(images=2),
    "nanovlm, text": lambda: pair_of_nanovlm(images=0),
    "nanovlm, long": lambda: pair_of_nanovlm(images=1, trained_positions=64),
    "arrcoc": pair_of_arrcoc,
    "megacontext": pair_of_megacontext,
}


@pytest.mark.parametrize("name", PAIRS)
def test_outputs_and_gradients_are_those_of_the_original(name: str) -> None:
    pair = PAIRS[name]()
    for ours, theirs in pair.calls:
        outputs = pair.fixed(**ours), pair.original(**theirs)
        assert_close(*outputs, **ROUNDED)
        for output in outputs:
            loss = getattr(output, "loss", None)
            (output.square().mean() if loss is None else loss).backward()
    others = dict(pair.original.named_parameters())
    for key, parameter in pair.fixed.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, key
        if others[key].grad is None:  # of what the original does not run or train
            assert name == "arrcoc" or (name == "nanovlm, text" and not gradient.any())
        elif key.startswith(pair.trained):
            assert gradient.any(), key
            assert_close(gradient, others[key].grad, rtol=1e-4, atol=1e-6)


def test_session_edits_and_predicts_as_the_original_does() -> None:
    length = MEGACONTEXT.length
    kinds = megacontext_session.Session, megacontext_original.Session
    fixed, original = (kind(MEGACONTEXT, length, torch.float64) for kind in kinds)
    original.load_state_dict(doubled(fixed).state_dict())
    edited = False
    for (tokens,) in megacontext_session.calls(MEGACONTEXT, length, "cpu"):
        before = {entry for entry in fixed.context.entries if entry.level}
        assert_close(fixed(tokens), original(tokens), **ROUNDED)
        context = fixed.context
        assert context.entries == original.context.entries
        covered = [t for entry in context.entries for t in context.span(entry)]
        assert covered == list(range(context.tokens))
        assert len(context) <= fixed.allocator.budget < context.tokens
        edited |= not before <= set(context.entries)
    assert edited


# -- a sample and its batch ------------------------------------------------------------


def logits_of_gpt() -> tuple[Tensor, list[Tensor]]:
    model = gpt.GPT(DECODER, window=5).double()
    batch = ids(3, 20)
    return model(batch), [model(row[None])[0] for row in batch]


def logits_of_nanovlm() -> tuple[Tensor, list[Tensor]]:
    model, batch = nanovlm.NanoVLM(VLM), captions(4, 130, 1)
    together = model(**nanovlm.collate(VLM, batch)).logits
    alone = [model(**nanovlm.collate(VLM, [each])) for each in batch]
    return together, [each.logits[0] for each in alone]


def scores_of_arrcoc(kind: type[arrcoc.ARRCOC]) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(0)
    model, batch = kind(arrcoc.SIZES["tiny"]).double(), pictures(5)

    def relevance(images: Tensor, queries: Tensor) -> Tensor:
        return model.relevance(model.backbone(images), queries)

    rows = zip(*(part.split(1) for part in batch), strict=True)
    return relevance(*batch), [relevance(*row)[0] for row in rows]


def losses_of_megacontext() -> tuple[Tensor, list[Tensor]]:
    model, (tokens, entries) = (
        doubled(megacontext_step.MicroStep(MEGACONTEXT)),
        inputs(4)[::2],
    )
    assert (entries < 0).any()
    together = model(tokens, entries)
    alone = [model(*row) for row in zip(tokens.split(1), entries.split(1), strict=True)]
    assert_close(together.loss, torch.stack([a.loss for a in alone]).mean(), **ROUNDED)
    assert_close(together.scores, torch.cat([a.scores for a in alone]), **ROUNDED)
    return together.nll, [each.nll[0] for each in alone]


@pytest.mark.parametrize(
    "compute",
    [
        logits_of_gpt,
        logits_of_nanovlm,
        lambda: scores_of_arrcoc(arrcoc.ARRCOC),
        losses_of_megacontext,
    ],
    ids=["gpt", "nanovlm", "arrcoc", "megacontext"],
)
def test_sample_does_not_depend_on_its_batch(
    compute: Callable[[], tuple[Tensor, list[Tensor]]],
) -> None:
    together, alone = compute()
    for row, own in zip(together, alone, strict=True):
        assert_close(row[: len(own)], own, **ROUNDED)


def test_scores_of_the_original_are_right_for_one_sample_only() -> None:
    _, ours = scores_of_arrcoc(arrcoc.ARRCOC)
    together, alone = scores_of_arrcoc(arrcoc_original.ARRCOC)
    assert_close(alone, ours)
    assert (together[0] - alone[0]).abs().max() > 0.01
