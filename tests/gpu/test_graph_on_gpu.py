"""Whole steps as CUDA graphs, on a real device."""

import copy
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchproof

# Torch warns of what may be faster; that is not the point here.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

DEVICE = "cuda"


class Block(nn.Module):
    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, width: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(3))
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def net(dropout: float = 0.0) -> Net:
    torch.manual_seed(0)
    return Net(dropout=dropout).to(DEVICE)


def batch(size: int = 8) -> Tensor:
    return torch.randn(size, 4, device=DEVICE)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other.detach(), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("strategy", ["eager", "full", "regional"])
def test_inference(strategy: str) -> None:
    model = net().eval()
    graphed = torchproof.graph(model, (batch(),), strategy=strategy)
    assert graphed.falls_back == []
    for _ in range(5):
        x = batch()
        close(graphed(x), model(x))
    with torch.no_grad():
        model.head.weight.mul_(2)
    x = batch()
    close(graphed(x), model(x))
    status = graphed.status()
    assert (status.replays, status.recordings) == (6, 1)
    assert status.pool_bytes
    model.head.weight = nn.Parameter(torch.randn(2, 32, device=DEVICE))
    close(graphed(x), model(x))
    close(graphed(x[:3]), model(x[:3]))
    model.half()
    got, want = graphed(x.half()), model(x.half())
    torch.testing.assert_close(got, want.detach(), rtol=0.02, atol=0.02)
    assert graphed.falls_back == []


@pytest.mark.parametrize("strategy", ["eager", "full", "regional"])
def test_training(strategy: str) -> None:
    model = net()
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model, train=True, strategy=strategy)
    for _ in range(3):
        x = batch()
        model.zero_grad()
        twin.zero_grad()
        graphed(x)
        twin(x).mean().backward()
        for (name, a), b in zip(
            model.named_parameters(), twin.parameters(), strict=True
        ):
            torch.testing.assert_close(
                a.grad, b.grad, rtol=2e-3, atol=2e-4, msg=lambda m, n=name: f"{n}: {m}"
            )
    assert graphed.falls_back == []
    assert graphed.status().recordings == 1


def test_dropout_is_fresh_and_answers_survive() -> None:
    model = net(dropout=0.5).train()
    x = batch(64)
    graphed = torchproof.graph(model, (x,))
    first = graphed(x)
    kept = first.clone()
    second = graphed(x)
    assert not torch.equal(first, second)
    assert torch.equal(first, kept)
    assert graphed.falls_back == []


Make = Callable[[nn.Module], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
}


def whole_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, autocast: bool = False
) -> Callable[[Tensor, Tensor], Tensor]:
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = F.mse_loss(model(x).float(), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_hundred_optimizer_steps_equal_eager(kind: str) -> None:
    torch.use_deterministic_algorithms(False)
    model = net()
    twin = copy.deepcopy(model)
    one, other = OPTIMIZERS[kind](model), OPTIMIZERS[kind](twin)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(one, 100)
    others = torch.optim.lr_scheduler.CosineAnnealingLR(other, 100)
    graphed, plain = torchproof.graph(whole_step(model, one)), whole_step(twin, other)
    for _ in range(100):
        x, y = batch(), torch.randn(8, 2, device=DEVICE)
        got, want = graphed(x, y), plain(x, y)
        close(got, want)
        schedule.step()
        others.step()
    for (name, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(
            a, b, rtol=1e-2, atol=1e-3, msg=lambda m, n=name: f"{n}: {m}"
        )
    status = graphed.status()
    assert status.stops == ()
    assert status.recordings == 1
    assert status.replays == 99  # the first made the optimizer's state


def test_autocast_sees_weights_that_change() -> None:
    model = net()
    twin = copy.deepcopy(model)
    one, other = OPTIMIZERS["adamw"](model), OPTIMIZERS["adamw"](twin)
    graphed = torchproof.graph(whole_step(model, one, autocast=True))
    plain = whole_step(twin, other, autocast=True)
    for _ in range(20):
        x, y = batch(), torch.randn(8, 2, device=DEVICE)
        torch.testing.assert_close(
            graphed(x, y), plain(x, y).detach(), rtol=0.05, atol=0.02
        )
    assert graphed.falls_back == []


def test_a_scaler_with_a_fused_optimizer() -> None:
    model = net()
    twin = copy.deepcopy(model)

    def step_of(net: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
        optimizer = OPTIMIZERS["fused"](net)
        scaler = torch.amp.GradScaler("cuda")

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(net(x).float(), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        return step

    graphed, plain = torchproof.graph(step_of(model)), step_of(twin)
    for _ in range(20):
        x, y = batch(), torch.randn(8, 2, device=DEVICE)
        torch.testing.assert_close(
            graphed(x, y), plain(x, y).detach(), rtol=0.05, atol=0.02
        )
    assert graphed.falls_back == []


def test_gradients_add_up() -> None:
    model = net()
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model, train=True)
    for _ in range(2):
        model.zero_grad()
        twin.zero_grad()
        for _ in range(4):
            x = batch()
            graphed(x)
            twin(x).mean().backward()
        close(model.embed.weight.grad, twin.embed.weight.grad)
    assert graphed.status().recordings == 2
    assert graphed.falls_back == []


def item(x: Tensor) -> Tensor:
    return x * x.sum().item()


def to_host(x: Tensor) -> Tensor:
    return x + x.cpu().mean().to(x.device)


def find(x: Tensor) -> Tensor:
    return x.nonzero()


def show(x: Tensor) -> Tensor:
    str(x)
    return x + 1


def allocate(x: Tensor) -> Tensor:
    return x + torch.ones(4).to(x.device)


def wait(x: Tensor) -> Tensor:
    torch.cuda.synchronize()
    return x + 1


@pytest.mark.parametrize("step", [item, to_host, find, show, allocate, wait])
def test_what_stops_a_capture_is_named(step: Callable[..., Any]) -> None:
    x = batch()
    graphed = torchproof.graph(step)
    for _ in range(2):
        assert torch.equal(graphed(x), step(x))
    stop = graphed.status().stops[0]
    assert stop.file == __file__
    assert stop.line == step.__code__.co_firstlineno + 1
    # Afterwards everything still works, random numbers too.
    torch.randn(3, device=DEVICE)
    model = net().eval()
    other = torchproof.graph(model, (x,))
    close(other(x), model(x))
    assert other.falls_back == []


def test_memory_is_given_back() -> None:
    def used() -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).to(DEVICE)
    x = torch.randn(4096, 1024, device=DEVICE)
    torchproof.graph(model, (x,))(x)  # workspaces stay
    before = used()
    graphed = torchproof.graph(model, (x,))
    graphed(x)
    assert used() > before
    del graphed
    assert used() <= before


def test_two_models_share_a_pool() -> None:
    def wide() -> nn.Module:
        layers = nn.Linear(4, 8192), nn.GELU(), nn.Linear(8192, 2)
        return nn.Sequential(*layers).to(DEVICE).eval()

    one, other = wide(), wide()
    x = batch(4096)
    first = torchproof.graph(one, (x,))
    alone = first.status().buckets[0].pool_bytes
    second = torchproof.graph(other, (x,), pool=first)
    for _ in range(5):
        x = batch(4096)
        a, b = first(x), second(x)
        close(a, one(x))
        close(b, other(x))
    more = second.status().buckets[0].pool_bytes
    assert alone is not None and more is not None
    assert more < alone / 4


def test_a_recording_has_the_workspaces_it_needs() -> None:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(3))).to(DEVICE).eval()
    graphed = torchproof.graph(model)
    before = torch.cuda.memory_allocated()
    for size in range(1, 9):
        graphed(torch.randn(64 * size, 512, device=DEVICE))
    # None of 32 MiB for each recording.
    assert torch.cuda.memory_allocated() - before < 32 << 20
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    filled = torch.full((64 << 20,), float("nan"), device=DEVICE)
    x = torch.randn(64, 512, device=DEVICE)
    close(graphed(x), model(x))
    assert filled.isnan().all()


def test_threads_take_turns() -> None:
    model = net().eval()
    graphed = torchproof.graph(model)
    wrong: list[str] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            generator = torch.Generator(DEVICE).manual_seed(number)
            for call in range(50):
                shape = (8 + 8 * (call % 2), 4)
                x = torch.randn(shape, device=DEVICE, generator=generator)
                got = graphed(x)
                with torch.no_grad():
                    if not torch.allclose(got, model(x), rtol=2e-3, atol=2e-4):
                        wrong.append(f"thread {number}, call {call}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert graphed.falls_back == []
    assert graphed.status().recordings == 2


@pytest.mark.parametrize("strategy", ["eager", "regional", "full"])
def test_hugging_face_model(strategy: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=3, n_embd=64, n_head=4, vocab_size=1000, use_cache=False
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).to(DEVICE).eval()
    ids = torch.randint(0, 1000, (2, 32), device=DEVICE)
    graphed = torchproof.graph(model, {"input_ids": ids}, strategy=strategy)
    assert graphed.falls_back == []
    for _ in range(3):
        ids = torch.randint(0, 1000, (2, 32), device=DEVICE)
        close(graphed(input_ids=ids).logits, model(input_ids=ids).logits)


def test_loss_of_a_hugging_face_model_is_compiled_as_its_own_region() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=3, n_embd=64, n_head=4, vocab_size=30000, use_cache=False
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).to(DEVICE).train()
    ids = torch.randint(0, 1000, (4, 64), device=DEVICE)
    call = {"input_ids": ids, "labels": ids}
    graphed = torchproof.graph(model, call, train=True, strategy="regional")
    assert graphed.falls_back == []
    model.zero_grad()
    loss = graphed(**call).loss
    gradient = model.transformer.wte.weight.grad.clone()
    model.zero_grad()
    want = model(**call).loss
    want.backward()
    close(loss, want)
    close(gradient, model.transformer.wte.weight.grad)
    rest = graphed._snapshot.preparation.rest
    assert any("loss" in code.co_name.lower() for code in rest), rest


T5 = {
    "small": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    "8 layers": {"num_layers": 8},
}


@pytest.mark.parametrize("strategy", ["eager", "full"])
@pytest.mark.parametrize("size", T5)
def test_t5_in_training_is_replayed_and_its_cache_has_the_strides_of_eager(
    size: str, strategy: str
) -> None:
    """Compiled code has other strides for the keys and values than eager."""
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        **T5[size], vocab_size=1000, dropout_rate=0.0, decoder_start_token_id=0
    )
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(config).to(DEVICE).train()
    graphed = torchproof.graph(model, train=True, strategy=strategy)
    for _ in range(3):
        model.zero_grad()
        ids = torch.randint(1, 1000, (4, 32), device=DEVICE)
        given = graphed(input_ids=ids, labels=ids)
        with torch.no_grad():
            want = model(input_ids=ids, labels=ids)
        close(given.loss, want.loss)
        for one, other in zip(
            given.past_key_values.self_attention_cache.layers,
            want.past_key_values.self_attention_cache.layers,
            strict=True,
        ):
            assert one.keys.stride() == other.keys.stride()
            close(one.keys, other.keys)
    assert graphed.falls_back == []
    assert graphed.status().replays == 3


# -- what a replay depends on ----------------------------------------------------------


class Damped(torch.optim.Optimizer):
    """An optimizer of the user, which reads attributes and settings of its groups."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1, "betas": [1.0, 0.5]})
        self.beta = 0.5

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                factor = self.beta * group["lr"] * sum(group["betas"])
                each.sub_(each.grad * factor)


def trained(make: Callable[[Any], torch.optim.Optimizer]) -> tuple[Any, Any, Any]:
    """A model, its optimizer and a whole step of them."""
    model = net()
    optimizer = make(model.parameters())

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


OPTIMIZER_CHANGES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "attribute": (Damped, lambda each: setattr(each, "beta", 0.9)),
    "learning rate": (Damped, lambda each: each.param_groups[0].update(lr=0.5)),
    "list": (Damped, lambda each: each.param_groups[0]["betas"].append(1.0)),
    "step": (Damped, lambda each: setattr(each, "step", lambda: None)),
    "betas": (torch.optim.AdamW, lambda o: o.param_groups[0].update(betas=(0.5, 0.5))),
    "rate of AdamW": (torch.optim.AdamW, lambda o: o.param_groups[0].update(lr=0.05)),
    "decay": (
        torch.optim.AdamW,
        lambda each: each.param_groups[0].update(weight_decay=0.5),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZER_CHANGES)
def test_a_change_of_an_optimizer_is_seen(name: str) -> None:
    make, change = OPTIMIZER_CHANGES[name]
    model, optimizer, step = trained(make)
    twin, other, eager = trained(make)
    graphed = torchproof.graph(step)
    for number in range(8):
        if number == 4:
            change(optimizer)
            change(other)
        x = batch()
        close(graphed(x), eager(x))
        for one, two in zip(model.parameters(), twin.parameters(), strict=True):
            close(one.detach(), two)
    assert graphed.status().replays >= 6, graphed.status()


@pytest.mark.parametrize("strategy", ["eager", "full"])
def test_strides_of_arguments_count_and_outputs_have_those_of_eager(
    strategy: str,
) -> None:
    def step(x: Tensor) -> tuple[Tensor, ...]:
        scaled = x * (2 if x.is_contiguous() else 3)
        return scaled, scaled * float(x.stride(0)), scaled.t()

    graphed = torchproof.graph(step, strategy=strategy)
    wide = torch.randn(4, 8, device=DEVICE)
    square = wide[:, :4].contiguous()
    forms = (square, square.t(), wide[:, :4], wide[:, ::2], wide[:1, :4].expand(4, 4))
    for _ in range(2):
        for x in forms:
            for one, other in zip(graphed(x), step(x), strict=True):
                close(one, other)
                assert one.stride() == other.stride()
    assert graphed.falls_back == []
    assert graphed.status().recordings == len(forms)


def test_images_in_channels_last() -> None:
    convolution = nn.Conv2d(3, 4, 3).to(DEVICE)
    graphed = torchproof.graph(convolution)
    for memory_format in (torch.contiguous_format, torch.channels_last) * 2:
        x = torch.randn(2, 3, 8, 8, device=DEVICE).contiguous(
            memory_format=memory_format
        )
        given, want = graphed(x), convolution(x)
        close(given, want)
        assert given.stride() == want.stride()
    assert graphed.status().recordings == 2


@pytest.fixture
def matmul_precision() -> Any:
    yield
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


def test_a_precision_set_by_the_newer_interface_is_seen(matmul_precision: Any) -> None:
    torch.set_float32_matmul_precision("highest")
    model = nn.Linear(512, 512).to(DEVICE)
    x = torch.randn(64, 512, device=DEVICE)
    graphed = torchproof.graph(model)
    exact = graphed(x)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    rounded = graphed(x)
    with torch.no_grad():
        difference = (rounded - model(x)).abs().max()
    assert difference < (rounded - exact).abs().max() / 10
    assert graphed.falls_back == [] and graphed.status().replays == 2


def test_switches_of_attention_and_of_reduced_precision_are_seen() -> None:
    def step(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q) @ q.transpose(-1, -2)

    graphed = torchproof.graph(step)
    q = torch.randn(2, 4, 64, 64, device=DEVICE, dtype=torch.float16)
    backends = nn.attention.SDPBackend
    for kind in (backends.MATH, backends.FLASH_ATTENTION, backends.MATH):
        with nn.attention.sdpa_kernel(kind):
            torch.testing.assert_close(graphed(q), step(q), rtol=1e-2, atol=1e-2)
    products = torch.backends.cuda.matmul
    before = products.allow_fp16_accumulation
    try:
        for accumulates in (False, True):
            products.allow_fp16_accumulation = accumulates
            torch.testing.assert_close(graphed(q), step(q), rtol=1e-2, atol=1e-1)
    finally:
        products.allow_fp16_accumulation = before
    assert graphed.status().recordings == 4
    assert graphed.falls_back == []
