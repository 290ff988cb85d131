"""The GPT: what a token attends to."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchproof.targets.workloads import gpt

SMALLER = gpt.Size(layers=2, dim=32, heads=2, vocabulary=50)
# torch says so where FlexAttention runs outside compiled code.
unfused = pytest.mark.filterwarnings("ignore:.*flex_attention called without")


def tokens(batch: int, length: int, vocabulary: int = SMALLER.vocabulary) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(vocabulary, (batch, length), generator=generator)


@unfused
@pytest.mark.parametrize("window", [None, 7])
def test_both_attentions_agree(window: int | None) -> None:
    torch.manual_seed(0)
    sdpa = gpt.GPT(SMALLER, window=window).double().requires_grad_(False)
    flex = gpt.GPT(SMALLER, attention="flex", window=window).double()
    flex.load_state_dict(sdpa.state_dict())
    flex.requires_grad_(False)
    batch = tokens(2, 150)
    torch.testing.assert_close(flex(batch), sdpa(batch))


@pytest.mark.parametrize("window", [None, 4])
def test_token_attends_to_its_window(window: int | None) -> None:
    torch.manual_seed(0)
    one_layer = gpt.Size(layers=1, dim=32, heads=2, vocabulary=50)
    model = gpt.GPT(one_layer, window=window)
    model.requires_grad_(False)
    length, changed = 12, 3
    batch = tokens(1, length)
    other = batch.clone()
    other[0, changed] = (other[0, changed] + 1) % one_layer.vocabulary
    differs = (model(batch) != model(other)).any(-1)[0]
    last = length if window is None else changed + window
    seen = [changed <= position < last for position in range(length)]
    assert differs.tolist() == seen


@unfused
def test_flex_trains_on_the_cpu_with_the_same_window() -> None:
    inference, calls = gpt.make(attention="flex")
    training, _ = gpt.make(attention="flex", train=True)
    assert (inference.attention, training.attention) == ("flex", "sdpa")
    assert inference.window == training.window == 64
    training.load_state_dict(inference.state_dict())
    [tokens] = calls[1]
    torch.testing.assert_close(training(tokens), inference(tokens))
