"""Steps that take numbers from host memory, as CUDA graphs on a real device."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

DEVICE = "cuda"
STEPS = 6
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
T5 |= {"vocab_size": 100, "decoder_start_token_id": 0, "dropout_rate": 0.0}
BART: dict[str, Any] = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
BART |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 100}
BART |= {"max_position_embeddings": 64, "dropout": 0.0}
MODELS = {
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig", BART),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", BART),
}


def made(name: str, **settings: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    model, config, sizes = MODELS[name]
    torch.manual_seed(0)
    known = getattr(transformers, config)(**sizes, **settings)
    built: nn.Module = getattr(transformers, model)(known)
    return built.to(DEVICE).train()


def training(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(ids: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        return loss

    return step


def texts(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 100, (2, 2, 12), generator=generator)
    ids[1, 1, 9 - seed :] = -100  # labels that do not count
    return ids[0].to(DEVICE), ids[1].to(DEVICE)


@pytest.mark.parametrize("name", MODELS)
def test_an_encoder_decoder_learns_as_in_eager(name: str) -> None:
    model = made(name)
    twin = copy.deepcopy(model)
    graphed, plain = torchproof.graph(training(model)), training(twin)
    for number in range(STEPS):
        call = texts(number)
        torch.testing.assert_close(
            graphed(*call), plain(*call).detach(), rtol=1e-3, atol=1e-4
        )
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)
    status = graphed.status()
    assert status.stops == (), status
    assert status.recordings == 1
    assert status.replays >= STEPS - 1  # the first makes the optimizer's state


def test_another_start_token_is_recorded_again() -> None:
    model: Any = made("t5")
    graphed = torchproof.graph(model, train=True)
    for start in (0, 0, 7, 7, 0):
        model.config.decoder_start_token_id = start
        ids, labels = texts(start)
        model.zero_grad()
        got = graphed(input_ids=ids, labels=labels).loss
        torch.testing.assert_close(got, model(input_ids=ids, labels=labels).loss)
    status = graphed.status()
    assert (status.recordings, status.replays, status.stops) == (2, 5, ()), status


def test_layers_that_are_dropped_at_random_are_not_replayed() -> None:
    graphed = torchproof.graph(made("bart", encoder_layerdrop=0.5), train=True)
    for number in range(2):
        ids, labels = texts(number)
        graphed(input_ids=ids, labels=labels)
    status = graphed.status()
    assert status.replays == 0
    assert "CPU memory" in status.stops[0].reason


def assigns_to_a_column(x: Tensor) -> Tensor:
    y = x.clone()
    y[..., 0] = 5
    y[1:, 1] = 0.5
    return y


def assigns_by_mask(x: Tensor) -> Tensor:
    y = x.clone()
    y[y > 0] = -1.0
    return y


def multiplies_by_a_host_tensor(x: Tensor) -> Tensor:
    return x * torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * 3)


@pytest.mark.parametrize(
    "step", [assigns_to_a_column, assigns_by_mask, multiplies_by_a_host_tensor]
)
def test_numbers_from_python_are_recorded(step: Callable[[Tensor], Tensor]) -> None:
    graphed = torchproof.graph(step)
    for _ in range(3):
        x = torch.randn(4, 3, device=DEVICE)
        assert torch.equal(graphed(x), step(x))
    status = graphed.status()
    assert (status.recordings, status.replays, status.stops) == (1, 3, ()), status


SCALE = torch.tensor(2.0)


def times_outside(x: Tensor) -> Tensor:
    return x * SCALE


def times_computed(x: Tensor) -> Tensor:
    return x * (SCALE + 1)


def times_its_item(x: Tensor) -> Tensor:
    return x * SCALE.item()


def times_its_list(x: Tensor) -> Tensor:
    return x * float(SCALE.tolist())


def assigns_outside(x: Tensor) -> Tensor:
    y = x.clone()
    y[..., 0] = SCALE
    return y


@pytest.mark.parametrize(
    "step",
    [times_outside, times_computed, times_its_item, times_its_list, assigns_outside],
)
def test_numbers_of_the_caller_are_not_replayed(
    step: Callable[[Tensor], Tensor],
) -> None:
    graphed = torchproof.graph(step)
    for number in range(3):
        SCALE.fill_(float(number))
        x = torch.randn(4, 3, device=DEVICE)
        assert torch.equal(graphed(x), step(x))
    status = graphed.status()
    assert status.replays == 0
    assert "CPU memory" in status.stops[0].reason
    assert status.stops[0].file == __file__


def test_attention_with_dropout_is_recorded() -> None:
    """Its backward takes the state of the generator, which eager keeps on the host."""

    def step(q: Tensor) -> Tensor:
        with torch.enable_grad():
            heads = q.detach().requires_grad_()
            answer = nn.functional.scaled_dot_product_attention(
                heads, heads, heads, dropout_p=0.1
            )
            (grad,) = torch.autograd.grad(answer.sum(), heads)
        return grad

    for dtype in (torch.float32, torch.bfloat16):
        graphed = torchproof.graph(step)
        q = torch.randn(2, 4, 16, 32, device=DEVICE, dtype=dtype)
        for _ in range(2):
            assert graphed(q).shape == q.shape
        status = graphed.status()
        assert (status.replays, status.stops) == (2, ()), status
