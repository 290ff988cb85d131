"""Programs as people write them who train and serve models.

Many of them compile without a finding: an advice there would be a false alarm. Each
cell is a module.
"""

# %% loss_item_every_n_steps
import torch
from torch import nn


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 1)
        self.step, self.every = 0, 2
        self.losses = []

    def forward(self, x, y):
        loss = nn.functional.mse_loss(self.net(x), y)
        self.step += 1
        if self.step % self.every == 0:
            self.losses.append(loss.item())
        return loss


def make():
    return Trainer(), [(torch.randn(8, 6), torch.randn(8, 1)) for _ in range(6)]


# %% boolean_mask_rows
import torch
from torch import nn


class Valid(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 4)

    def forward(self, x, valid):
        h = self.encoder(x)
        return h[valid].mean(dim=0)


def make():
    return Valid(), [(torch.randn(8, 4), torch.rand(8) > 0.4) for _ in range(4)]


# %% last_batch_is_smaller
import torch
from torch import nn


def make():
    net = nn.Sequential(nn.Linear(10, 20), nn.BatchNorm1d(20), nn.ReLU())
    return net, [(torch.randn(n, 10),) for n in (16, 16, 16, 7)]


# %% sequences_of_any_length
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, ids):
        h = self.layer(self.embed(ids))
        return self.head(h.mean(1))


def make():
    lengths = (5, 9, 12, 7)
    return Model(), [(torch.randint(0, 50, (3, n)),) for n in lengths]


# %% counter_attribute_with_warmup
import torch
from torch import nn


class Codebook(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        beta = 0.25 * min(self.calls / 4, 1.0)
        z = self.proj(x)
        return z + beta * (z.round() - z).detach()


def make():
    return Codebook(), [(torch.randn(3, 4),) for _ in range(6)]


# %% dict_state_recurrent
import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.i2h = nn.Linear(4, 8)
        self.h2h = nn.Linear(8, 8)

    def forward(self, x, state):
        h = torch.tanh(self.i2h(x) + self.h2h(state["h"]))
        return h, {"h": h, "step": state["step"] + 1}


def make():
    def state(step):
        return {"h": torch.zeros(2, 8), "step": step}

    return Cell(), [(torch.randn(2, 4), state(i)) for i in range(4)]


# %% list_of_states_grows
import torch
from torch import nn


class History(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.states = []

    def forward(self, x):
        h = self.lin(x)
        self.states.append(h.detach())
        return h + torch.stack(self.states).mean(0)


def make():
    return History(), [(torch.randn(2, 4),) for _ in range(4)]


# %% random_crop
import random

import torch
from torch import nn


class RandomCrop(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.conv = nn.Conv2d(1, 2, 3)

    def forward(self, x):
        top = random.randint(0, x.shape[2] - self.size)
        left = random.randint(0, x.shape[3] - self.size)
        x = x[:, :, top : top + self.size, left : left + self.size]
        return self.conv(x)


def make():
    return RandomCrop(6), [(torch.randn(1, 1, 10, 10),) for _ in range(4)]


# %% numpy_positional_table
import numpy as np
import torch
from torch import nn


def table(length, width):
    position = np.arange(length)[:, None]
    rates = 1 / 10000 ** (np.arange(0, width, 2) / width)
    both = np.concatenate([np.sin(position * rates), np.cos(position * rates)], 1)
    return torch.from_numpy(both).float()


class WithPositions(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        return self.lin(x + table(x.shape[1], x.shape[2]))


def make():
    return WithPositions(), [(torch.randn(2, n, 8),) for n in (4, 6, 5)]


# %% dataclass_output
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor
    loss: torch.Tensor | None = None


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x, labels=None):
        hidden = self.body(x).relu()
        logits = self.head(hidden)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits, labels)
        return Output(logits, hidden, loss)


def make():
    return Model(), [(torch.randn(4, 6), torch.randint(0, 3, (4,))) for _ in range(3)]


# %% kv_cache_by_concatenation
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.k = self.v = None

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.k is not None:
            k = torch.cat([self.k, k], 1)
            v = torch.cat([self.v, v], 1)
        self.k, self.v = k, v
        return nn.functional.scaled_dot_product_attention(q, k, v)


def make():
    model = Attention().requires_grad_(False)
    return model, [(torch.randn(1, n, 8),) for n in (4, 1, 1, 1, 1)]


# %% kv_cache_in_a_buffer
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("k", torch.zeros(1, 16, 8))
        self.register_buffer("v", torch.zeros(1, 16, 8))

    def forward(self, x, position):
        q, k, v = self.qkv(x).chunk(3, -1)
        self.k[:, position] = k[:, 0]
        self.v[:, position] = v[:, 0]
        keys, values = self.k[:, : position + 1], self.v[:, : position + 1]
        return nn.functional.scaled_dot_product_attention(q, keys, values)


def make():
    model = Attention().requires_grad_(False)
    return model, [(torch.randn(1, 1, 8), i) for i in range(6)]


# %% layer_drop
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
        self.drop = 0.2

    def forward(self, x):
        for layer in self.layers:
            if self.training and torch.rand(()) < self.drop:
                continue
            x = x + layer(x).relu()
        return x


def make():
    return Encoder().train(), [(torch.randn(2, 4),) for _ in range(4)]


# %% lora_adapters_by_name
import torch
from torch import nn


class LoRA(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.base = nn.Linear(8, 8)
        self.down = nn.ModuleDict({n: nn.Linear(8, 2, bias=False) for n in names})
        self.up = nn.ModuleDict({n: nn.Linear(2, 8, bias=False) for n in names})
        self.active = names[0]

    def forward(self, x):
        y = self.base(x)
        return y + self.up[self.active](self.down[self.active](x))


class User(nn.Module):
    def __init__(self):
        super().__init__()
        self.lora = LoRA(["de", "fr", "en"])

    def forward(self, x, language):
        self.lora.active = language
        return self.lora(x)


def make():
    return User(), [(torch.randn(2, 8), name) for name in ("de", "fr", "en", "de")]


# %% learning_rate_from_scheduler
import torch
from torch import nn

weights = nn.Parameter(torch.randn(4))
optimizer = torch.optim.SGD([weights], lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def update(x):
    rate = optimizer.param_groups[0]["lr"]
    gradient = 2 * (x @ weights.detach()).unsqueeze(-1) * x
    return weights.detach() - rate * gradient.mean(0)


def before_call(fn, index):
    optimizer.step()
    schedule.step()


def make():
    return update, [(torch.randn(6, 4),) for _ in range(4)]


# %% early_exit_on_confidence
import torch
from torch import nn


class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.exits = nn.ModuleList([nn.Linear(6, 4) for _ in range(3)])

    def forward(self, x):
        for block, leave in zip(self.blocks, self.exits):
            x = torch.relu(block(x))
            logits = leave(x)
            if logits.softmax(-1).max(-1).values.min() > 0.3:
                return logits
        return logits


def make():
    return EarlyExit(), [(torch.randn(2, 6),) for _ in range(4)]


# %% assert_on_values
import torch
from torch import nn


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)

    def forward(self, ids):
        assert ids.max() < self.embed.num_embeddings, "token is not in the vocabulary"
        assert ids.dim() == 2
        return self.embed(ids).sum(1)


def make():
    return Embedder(), [(torch.randint(0, 30, (2, 5)),) for _ in range(2)]


# %% print_debugging_of_values
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, debug=True):
        super().__init__()
        self.debug = debug
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 2)

    def forward(self, x):
        h = self.a(x).relu()
        if self.debug:
            print("hidden", h.mean(), h.std())
        return self.b(h)


def make():
    return Net(), [(torch.randn(3, 4),) for _ in range(3)]


# %% tokenizer_in_forward
import torch
from torch import nn


class TextClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = {"good": 1, "bad": 2, "very": 3, "film": 4}
        self.embed = nn.EmbeddingBag(8, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, texts):
        ids = [[self.words.get(w, 0) for w in t.lower().split()] for t in texts]
        longest = max(map(len, ids))
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
        return self.head(self.embed(padded))


def make():
    batches = [
        ["good film", "very bad"],
        ["bad", "very very good film"],
        ["a film", "good"],
    ]
    return TextClassifier(), [(batch,) for batch in batches]


# %% memoised_rotary_table
import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.tables = {}

    def forward(self, x):
        length = x.shape[1]
        if length not in self.tables:
            rates = 1 / 10000 ** (torch.arange(0, self.width, 2) / self.width)
            self.tables[length] = torch.outer(torch.arange(length), rates)
        angles = self.tables[length]
        a, b = x.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def make():
    return Rotary(8), [(torch.randn(1, n, 8),) for n in (4, 6, 4, 8)]


# %% autocast_inside
import torch
from torch import nn


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.a(x).relu()
        return self.b(h.float())


def make():
    return Mixed(), [(torch.randn(2, 8),) for _ in range(2)]


# %% own_manager_for_evaluation
import contextlib

import torch
from torch import nn


@contextlib.contextmanager
def evaluating(module):
    before = module.training
    module.eval()
    try:
        yield module
    finally:
        module.train(before)


class Distill(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        self.student = nn.Linear(4, 4)

    def forward(self, x):
        with evaluating(self.teacher), torch.no_grad():
            target = self.teacher(x)
        return (self.student(x) - target).square().mean()


def make():
    return Distill().train(), [(torch.randn(3, 4),) for _ in range(3)]


# %% enumerate_and_zip
import torch
from torch import nn


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.lateral = nn.ModuleList([nn.Conv2d(c, 4, 1) for c in (2, 4, 8)])
        self.weights = [0.2, 0.3, 0.5]

    def forward(self, features):
        out = []
        for i, (conv, x, w) in enumerate(zip(self.lateral, features, self.weights)):
            y = conv(x) * w
            out.append(nn.functional.interpolate(y, scale_factor=2**i))
        return sum(out)


def make():
    def features():
        return [torch.randn(1, c, 8 // s, 8 // s) for c, s in ((2, 1), (4, 2), (8, 4))]

    return Pyramid(), [(features(),) for _ in range(2)]


# %% generator_of_windows
import torch
from torch import nn


def windows(x, size, stride):
    for begin in range(0, x.shape[-1] - size + 1, stride):
        yield x[..., begin : begin + size]


class Windowed(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 3)

    def forward(self, x):
        return torch.stack([self.lin(w) for w in windows(x, 4, 2)], 1).amax(1)


def make():
    return Windowed(), [(torch.randn(2, 12),) for _ in range(2)]


# %% straight_through_function
import torch
from torch import nn


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


class Binary(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 6)

    def forward(self, x):
        return Sign.apply(self.lin(x)).sum(-1)


def make():
    return Binary(), [(torch.randn(3, 6),) for _ in range(2)]


# %% forward_hook_collects
import torch
from torch import nn


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.taken = {}
        self.body[1].register_forward_hook(self.take)

    def take(self, module, args, output):
        self.taken["relu"] = output

    def forward(self, x):
        y = self.body(x)
        return y, self.taken["relu"].mean()


def make():
    return Features(), [(torch.randn(2, 4),) for _ in range(2)]


# %% hook_prints_statistics
import torch
from torch import nn


def report(module, args, output):
    print(type(module).__name__, float(output.abs().max()))


def make():
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    for layer in net:
        layer.register_forward_hook(report)
    return net, [(torch.randn(2, 4),) for _ in range(2)]


# %% weight_norm
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


def make():
    net = nn.Sequential(weight_norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 2))
    return net, [(torch.randn(3, 4),) for _ in range(2)]


# %% spectral_norm
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm


def make():
    net = nn.Sequential(spectral_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 1))
    return net.train(), [(torch.randn(3, 4),) for _ in range(3)]


# %% window_partition_reshapes
import torch
from torch import nn


class WindowAttention(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        self.size = size
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        b, h, w, c = x.shape
        s = self.size
        x = x.view(b, h // s, s, w // s, s, c).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(-1, s * s, c)
        q, k, v = self.qkv(x).chunk(3, -1)
        x = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x.view(b, h // s, w // s, s, s, c).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(b, h, w, c)


def make():
    return WindowAttention(), [(torch.randn(1, 8, 8, 8),) for _ in range(2)]


# %% pads_to_multiple
import torch
from torch import nn


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 4, stride=4)

    def forward(self, x):
        missing = -x.shape[-1] % 4
        if missing:
            x = nn.functional.pad(x, (0, missing))
        return self.conv(x)


def make():
    return Padded(), [(torch.randn(1, 2, n),) for n in (16, 18, 21, 24, 30)]


# %% experts_by_mask
import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, count=4, top=2):
        super().__init__()
        self.top = top
        self.gate = nn.Linear(8, count)
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(count)])

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(self.top)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == i)
            if len(rows) == 0:
                continue
            out[rows] += weights[rows, slot, None] * expert(x[rows])
        return out


def make():
    return Experts().requires_grad_(False), [(torch.randn(6, 8),) for _ in range(3)]


# %% experts_dense
import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, count=4):
        super().__init__()
        self.gate = nn.Linear(8, count)
        self.weight = nn.Parameter(torch.randn(count, 8, 8) / 3)

    def forward(self, x):
        gates = self.gate(x).softmax(-1)
        outs = torch.einsum("bi,eio->beo", x, self.weight)
        return (gates.unsqueeze(-1) * outs).sum(1)


def make():
    return Experts(), [(torch.randn(6, 8),) for _ in range(2)]


# %% beam_search_step
import torch
from torch import nn


class Beam(nn.Module):
    def __init__(self, width=3, vocabulary=12, end=1):
        super().__init__()
        self.width, self.end = width, end
        self.embed = nn.Embedding(vocabulary, 8)
        self.head = nn.Linear(8, vocabulary)

    def forward(self, tokens, scores):
        logits = self.head(self.embed(tokens[:, -1])).log_softmax(-1)
        total = scores.unsqueeze(1) + logits
        best, flat = total.view(-1).topk(self.width)
        beam, token = flat // logits.shape[-1], flat % logits.shape[-1]
        finished = [i for i, t in enumerate(token.tolist()) if t == self.end]
        for i in finished:
            best[i] = best[i] - 1e3
        return torch.cat([tokens[beam], token.unsqueeze(1)], 1), best


def make():
    beam = Beam().requires_grad_(False)
    return beam, [(torch.randint(2, 12, (3, n)), torch.zeros(3)) for n in (2, 3, 4, 5)]


# %% greedy_suppression
import torch


def iou(box, boxes):
    low = torch.maximum(box[:2], boxes[:, :2])
    high = torch.minimum(box[2:], boxes[:, 2:])
    inter = (high - low).clamp(min=0).prod(-1)
    area = (box[2:] - box[:2]).prod() + (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    return inter / (area - inter)


def suppress(boxes, scores, limit=0.5):
    order = scores.argsort(descending=True)
    kept = []
    while len(order) > 0:
        first = order[0]
        kept.append(first)
        rest = order[1:]
        order = rest[iou(boxes[first], boxes[rest]) < limit]
    return torch.stack(kept)


def make():
    def call():
        corner = torch.rand(6, 2)
        return torch.cat([corner, corner + 0.3], 1), torch.rand(6)

    return suppress, [call() for _ in range(2)]


# %% diffusion_timestep_by_int
import math

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 8)
        self.betas = torch.linspace(1e-4, 0.02, 50)

    def forward(self, x, t):
        alpha = torch.cumprod(1 - self.betas, 0)[t]
        noise = self.net(x + math.sin(t))
        return (x - (1 - alpha).sqrt() * noise) / alpha.sqrt()


def make():
    model = Denoiser().requires_grad_(False)
    return model, [(torch.randn(1, 8), t) for t in range(40, 0, -8)]


# %% diffusion_loop_inside
import torch
from torch import nn


class Sampler(nn.Module):
    def __init__(self, steps=4):
        super().__init__()
        self.steps = steps
        self.net = nn.Linear(9, 8)

    def forward(self, x):
        for i in range(self.steps):
            t = torch.full((len(x), 1), i / self.steps)
            x = x - self.net(torch.cat([x, t], 1)) / self.steps
        return x


def make():
    return Sampler(), [(torch.randn(2, 8),) for _ in range(2)]


# %% ema_of_weights
import torch
from torch import nn


class WithEma(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.ema = nn.Linear(4, 4).requires_grad_(False)
        self.updates = 0

    @torch.no_grad()
    def update(self):
        self.updates += 1
        decay = min(0.99, (1 + self.updates) / (10 + self.updates))
        for target, source in zip(self.ema.parameters(), self.net.parameters()):
            target.lerp_(source, 1 - decay)

    def forward(self, x):
        self.update()
        return self.net(x) - self.ema(x)


def make():
    return WithEma(), [(torch.randn(2, 4),) for _ in range(5)]


# %% clips_gradients_by_norm
import torch


def clip(gradients, limit):
    norm = torch.stack([g.norm() for g in gradients]).norm()
    if norm > limit:
        gradients = [g * (limit / norm) for g in gradients]
    return gradients, norm


def make():
    def gradients(scale):
        return [scale * torch.randn(4, 4), scale * torch.randn(4)]

    return clip, [(gradients(s), 1.0) for s in (1.0, 0.01, 2.0)]


# %% evaluation_between_steps
import torch
from torch import nn


def make():
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2))
    return net, [(torch.randn(3, 4),) for _ in range(6)]


def before_call(fn, index):
    fn.train(index % 3 != 2)


# %% mixup_with_numpy_beta
import numpy as np
import torch
from torch import nn


class Mixup(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x, y):
        lam = np.random.beta(0.4, 0.4)
        order = torch.randperm(len(x))
        logits = self.net(lam * x + (1 - lam) * x[order])
        one = nn.functional.cross_entropy(logits, y)
        other = nn.functional.cross_entropy(logits, y[order])
        return lam * one + (1 - lam) * other


def make():
    return Mixup(), [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(4)]


# %% resnet_block
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.a = nn.Conv2d(inner, outer, 3, padding=1)
        self.b = nn.Conv2d(outer, outer, 3, padding=1)
        self.norm = nn.BatchNorm2d(outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x):
        return torch.relu(self.norm(self.b(torch.relu(self.a(x)))) + self.skip(x))


def make():
    net = nn.Sequential(Block(2, 4), Block(4, 4), nn.AdaptiveAvgPool2d(1))
    return net, [(torch.randn(2, 2, 8, 8),) for _ in range(2)]


# %% gpt_block
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x):
        b, t, c = x.shape
        qkv = self.qkv(self.n1(x)).view(b, t, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.n2(x))


def make():
    return nn.Sequential(Block(), Block()), [(torch.randn(2, 6, 16),) for _ in range(2)]


# %% vae_loss
import torch
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(8, 6)
        self.decode = nn.Linear(3, 8)

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        error = (self.decode(z) - x).square().sum(-1)
        kl = 0.5 * (log_variance.exp() + mean**2 - 1 - log_variance).sum(-1)
        return (error + kl).mean()


def make():
    return VAE(), [(torch.randn(4, 8),) for _ in range(3)]


# %% contrastive_pairs
import torch
from torch import nn


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(8, 4), nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, images, texts):
        a = nn.functional.normalize(self.image(images), dim=-1)
        b = nn.functional.normalize(self.text(texts), dim=-1)
        logits = self.scale.exp() * a @ b.mT
        labels = torch.arange(len(logits))
        loss = nn.functional.cross_entropy
        return (loss(logits, labels) + loss(logits.mT, labels)) / 2


def make():
    return Clip(), [(torch.randn(5, 8), torch.randn(5, 6)) for _ in range(2)]


# %% unet_skips
import torch
from torch import nn


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(1, 4, 3, 2, 1), nn.Conv2d(4, 8, 3, 2, 1)])
        self.up = nn.ModuleList([nn.Conv2d(8, 4, 3, 1, 1), nn.Conv2d(8, 1, 3, 1, 1)])

    def forward(self, x):
        skips = []
        for conv in self.down:
            x = conv(x).relu()
            skips.append(x)
        skips.pop()
        for i, conv in enumerate(self.up):
            x = conv(nn.functional.interpolate(x, scale_factor=2))
            if i < len(skips):
                x = torch.cat([x, skips[-1 - i]], 1)
        return x


def make():
    return UNet(), [(torch.randn(1, 1, 16, 16),) for _ in range(2)]


# %% named_tuple_batch
from typing import NamedTuple

import torch
from torch import nn


class Batch(NamedTuple):
    x: torch.Tensor
    mask: torch.Tensor


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, batch):
        h = self.lin(batch.x) * batch.mask.unsqueeze(-1)
        return h.sum(1) / batch.mask.sum(1, keepdim=True).clamp(min=1)


def make():
    def batch():
        return Batch(torch.randn(2, 5, 4), (torch.rand(2, 5) > 0.3).float())

    return Pool(), [(batch(),) for _ in range(3)]


# %% kwargs_config
import torch
from torch import nn


class Configured(nn.Module):
    def __init__(self, **config):
        super().__init__()
        self.config = {"act": "relu", "residual": True, **config}
        self.lin = nn.Linear(4, 4)

    def forward(self, x, **options):
        y = getattr(torch, self.config["act"])(self.lin(x))
        if options.get("residual", self.config["residual"]):
            y = y + x
        return y


def make():
    return Configured(act="tanh"), [(torch.randn(2, 4),) for _ in range(2)]


# %% running_mean_buffer
import torch
from torch import nn


class Normalise(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += len(x)
        self.mean += (x - self.mean).sum(0) / self.count
        return x - self.mean


def make():
    return Normalise(), [(torch.randn(5, 4),) for _ in range(4)]


# %% temperature_as_float
import torch
from torch import nn


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 10)

    def forward(self, h, temperature):
        return (self.head(h) / temperature).softmax(-1)


def make():
    rates = (1.0, 0.9, 0.8, 0.7, 0.5)
    return Sampler(), [(torch.randn(2, 6), t) for t in rates]


# %% top_p_sampling
import torch
from torch import nn


class Nucleus(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 10)

    def forward(self, h, p=0.8):
        probabilities, order = self.head(h).softmax(-1).sort(descending=True)
        past = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.masked_fill(past > p, 0.0)
        return order.gather(-1, probabilities.argmax(-1, keepdim=True))


def make():
    return Nucleus(), [(torch.randn(2, 6),) for _ in range(2)]


# %% stop_when_all_finished
import torch
from torch import nn


class Generate(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.head = nn.Linear(8, 12)

    def forward(self, ids):
        done = torch.zeros(len(ids), dtype=torch.bool)
        for _ in range(4):
            token = self.head(self.embed(ids[:, -1])).argmax(-1)
            ids = torch.cat([ids, token.unsqueeze(1)], 1)
            done |= token == 0
            if done.all():
                break
        return ids


def make():
    model = Generate().requires_grad_(False)
    return model, [(torch.randint(1, 12, (2, 3)),) for _ in range(3)]


# %% image_size_from_batch
import torch
from torch import nn


class Resize(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)

    def forward(self, image, size):
        image = nn.functional.interpolate(image, size=(int(size[0]), int(size[1])))
        return self.conv(image).mean((2, 3))


def make():
    sizes = [(6, 6), (8, 6), (7, 9)]
    return Resize(), [(torch.randn(1, 1, 10, 10), torch.tensor(s)) for s in sizes]


# %% loss_is_nan_skip
import math

import torch
from torch import nn


class Guarded(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.skipped = 0

    def forward(self, x, y):
        loss = (self.net(x) - y).square().mean()
        if math.isnan(loss):
            self.skipped += 1
            return torch.zeros(())
        return loss


def make():
    return Guarded(), [(torch.randn(4, 4), torch.randn(4, 1)) for _ in range(3)]


# %% metrics_in_a_dict
import torch
from torch import nn


class Metrics(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x, y):
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        accuracy = (logits.argmax(-1) == y).float().mean()
        return loss, {"loss": loss.detach().item(), "accuracy": accuracy.item()}


def make():
    return Metrics(), [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(3)]


# %% metrics_kept_as_tensors
import torch
from torch import nn


class Metrics(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x, y):
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        accuracy = (logits.argmax(-1) == y).float().mean()
        return loss, {"loss": loss.detach(), "accuracy": accuracy}


def make():
    return Metrics(), [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(3)]


# %% progress_bar_postfix
import sys

import torch
from torch import nn

net = nn.Linear(4, 1)


def epoch(batches):
    total = 0.0
    for i, (x, y) in enumerate(batches):
        loss = (net(x) - y).square().mean()
        total += loss.item()
        sys.stderr.write(f"{i}: {total / (i + 1):.3f}\n")
    return total / len(batches)


def make():
    def batches():
        return [(torch.randn(4, 4), torch.randn(4, 1)) for _ in range(3)]

    return epoch, [(batches(),) for _ in range(2)]


# %% padded_text_lengths
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.lin = nn.Linear(6, 6)

    def forward(self, ids, lengths):
        longest = lengths.max().item()
        ids = ids[:, :longest]
        mask = torch.arange(longest) < lengths.unsqueeze(1)
        return (self.lin(self.embed(ids)) * mask.unsqueeze(-1)).sum(1)


def make():
    lengths = [(4, 6), (5, 8), (3, 7)]
    return Encoder(), [
        (torch.randint(0, 20, (2, 10)), torch.tensor(n)) for n in lengths
    ]


# %% packed_gru
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.gru = nn.GRU(6, 8, batch_first=True)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(
            self.embed(ids), lengths, batch_first=True, enforce_sorted=False
        )
        _, last = self.gru(packed)
        return last[-1]


def make():
    return Reader(), [
        (torch.randint(0, 20, (2, 6)), torch.tensor(n)) for n in ((6, 4), (3, 5))
    ]


# %% tied_embedding_and_head
import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.body(self.embed(ids)).tanh())


def make():
    return Tied(), [(torch.randint(0, 16, (2, 4)),) for _ in range(2)]


# %% freezes_layers_by_epoch
import torch
from torch import nn


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.epoch = 0

    def forward(self, x):
        if self.epoch < 2:
            with torch.no_grad():
                h = self.backbone(x)
        else:
            h = self.backbone(x)
        return self.head(h.relu())


def before_call(fn, index):
    fn.epoch = index // 2


def make():
    return Frozen(), [(torch.randn(2, 4),) for _ in range(8)]


# %% curriculum_by_float_attribute
import torch
from torch import nn


class Curriculum(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.noise = 1.0

    def forward(self, x):
        return self.net(x + self.noise * torch.ones_like(x)).sum(-1)


def before_call(fn, index):
    fn.noise = 1.0 / (index + 1)


def make():
    return Curriculum(), [(torch.randn(3, 4),) for _ in range(6)]


# %% masks_made_per_sample
import torch
from torch import nn


class SpecAugment(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 8)

    def forward(self, x):
        x = x.clone()
        for i in range(len(x)):
            width = int(torch.randint(1, 4, ()))
            begin = int(torch.randint(0, x.shape[1] - width, ()))
            x[i, begin : begin + width] = 0
        return self.net(x)


def make():
    return SpecAugment(), [(torch.randn(3, 10, 8),) for _ in range(2)]


# %% hidden_state_detached
import torch
from torch import nn


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 6)
        self.policy = nn.Linear(6, 3)
        self.h = None

    def forward(self, observation):
        if self.h is None:
            self.h = torch.zeros(len(observation), 6)
        self.h = self.cell(observation, self.h).detach()
        return self.policy(self.h).softmax(-1)


def make():
    return Agent(), [(torch.randn(2, 4),) for _ in range(4)]


# %% action_chosen_in_python
import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.moves = ["left", "stay", "right"]
        self.values = {"left": -1.0, "stay": 0.0, "right": 1.0}

    def forward(self, x):
        action = int(self.net(x).argmax())
        return x * self.values[self.moves[action]]


def make():
    return Policy(), [(torch.randn(4),) for _ in range(4)]


# %% environment_step_with_numpy
import numpy as np
import torch
from torch import nn


class World(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = nn.Linear(4, 4)

    def physics(self, action):
        return np.tanh(action).cumsum(-1)

    def forward(self, state):
        action = self.policy(state)
        new = self.physics(action.detach().cpu().numpy())
        return torch.as_tensor(new) + state


def make():
    return World(), [(torch.randn(2, 4),) for _ in range(2)]


# %% layers_from_state_dict_names
import torch
from torch import nn


class Merge(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        merged = {}
        other = dict(self.b.named_parameters())
        for name, value in self.a.named_parameters():
            merged[name] = (value + other[name]) / 2
        return torch.func.functional_call(self.a, merged, (x,))


def make():
    return Merge(), [(torch.randn(2, 4),) for _ in range(2)]


# %% gradient_checkpointed_blocks
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False).relu()
        return x


def make():
    return Deep(), [(torch.randn(2, 4),) for _ in range(2)]


# %% accepts_numpy_arrays
import numpy as np
import torch
from torch import nn


class Service(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)

    def forward(self, features):
        x = torch.as_tensor(features, dtype=torch.float32)
        return self.net(x).softmax(-1)


def make():
    return Service(), [(np.random.rand(n, 4),) for n in (2, 2, 3)]


# %% answers_lists
import torch
from torch import nn


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(4, 1)

    def forward(self, documents):
        scores = self.score(documents).squeeze(-1)
        best = scores.topk(2).indices
        return best.tolist()


def make():
    model = Ranker().requires_grad_(False)
    return model, [(torch.randn(n, 4),) for n in (4, 6, 5)]


# %% labels_may_be_missing
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x, y=None):
        logits = self.net(x)
        if y is None:
            return logits
        return nn.functional.cross_entropy(logits, y)


def make():
    x, y = torch.randn(4, 4), torch.tensor([0, 1, 2, 0])
    return Model(), [(x, y), (x,), (x, y), (x,)]


# %% modality_flags
import torch
from torch import nn


class Multi(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({n: nn.Linear(4, 4) for n in ("a", "b", "c")})

    def forward(self, inputs):
        known = [self.parts[name](x) for name, x in inputs.items() if x is not None]
        return torch.stack(known).mean(0)


def make():
    def inputs(names):
        return {n: torch.randn(2, 4) if n in names else None for n in "abc"}

    return Multi(), [(inputs(names),) for names in ("abc", "ab", "ac", "b", "abc")]


# %% dtype_varies
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)

    def forward(self, x):
        return self.net(x.float()).sum(-1)


def make():
    kinds = (torch.float32, torch.float64, torch.float16, torch.float32)
    return Head(), [(torch.randn(2, 4).to(kind),) for kind in kinds]


# %% layout_varies
import torch
from torch import nn


def make():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    x = torch.randn(2, 3, 8, 8)
    return net, [(x,), (x.to(memory_format=torch.channels_last),), (x,)]


# %% grad_mode_varies
import torch
from torch import nn

net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())


def make():
    x = torch.randn(2, 4)
    return net, [(x,), (x.clone().requires_grad_(),), (x,)]


# %% batch_of_one_for_serving
import torch
from torch import nn


class Serve(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 3))

    def forward(self, x):
        return self.net(x).argmax(-1)


def make():
    sizes = (8, 1, 3, 1, 5)
    return Serve().requires_grad_(False), [(torch.randn(n, 6),) for n in sizes]


# %% list_of_images
import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, images):
        height = max(image.shape[-2] for image in images)
        width = max(image.shape[-1] for image in images)
        batch = torch.zeros(len(images), 1, height, width)
        for i, image in enumerate(images):
            batch[i, :, : image.shape[-2], : image.shape[-1]] = image
        return self.conv(batch).amax((2, 3))


def make():
    def images(*sizes):
        return ([torch.randn(1, h, w) for h, w in sizes],)

    return Detector(), [
        images((6, 6), (8, 5)),
        images((7, 7), (5, 8)),
        images((6, 6), (8, 5), (4, 4)),
    ]


# %% object_with_schedule
import math

import torch
from torch import nn


class Cosine:
    def __init__(self, steps):
        self.steps, self.now = steps, 0

    def value(self):
        self.now += 1
        return 0.5 * (1 + math.cos(math.pi * self.now / self.steps))


class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.schedule = Cosine(10)

    def forward(self, x):
        weight = self.schedule.value()
        return weight * self.net(x) + (1 - weight) * x


def make():
    return Annealed(), [(torch.randn(2, 4),) for _ in range(5)]


# %% triangular_mask_per_length
import torch
from torch import nn


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("mask", torch.ones(32, 32).tril().bool())

    def forward(self, x):
        t = x.shape[1]
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT / 8**0.5).masked_fill(~self.mask[:t, :t], float("-inf"))
        return scores.softmax(-1) @ v


def make():
    return Causal(), [(torch.randn(1, n, 8),) for n in (6, 9, 12, 30)]


# %% quantile_clipping
import torch


def dynamic_threshold(x, ratio=0.9):
    limit = torch.quantile(x.abs().flatten(1), ratio, dim=1).clamp(min=1.0)
    limit = limit.view(-1, *[1] * (x.ndim - 1))
    return x.clamp(-limit, limit) / limit


def make():
    return dynamic_threshold, [(torch.randn(2, 1, 4, 4),) for _ in range(2)]


# %% word_dropout_where
import torch
from torch import nn


class WordDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 4)

    def forward(self, ids):
        dropped = torch.rand(ids.shape) < 0.2
        return self.embed(torch.where(dropped, torch.zeros_like(ids), ids))


def make():
    return WordDropout(), [(torch.randint(1, 20, (2, 6)),) for _ in range(2)]
