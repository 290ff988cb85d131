"""Programs that were written after the advice, by someone who had not read its rules.

They tell whether an advice works beyond the programs that it was tried on while it was
written. Each cell is a module.
"""

# %% moco_queue
import torch
from torch import nn


class Contrast(nn.Module):
    def __init__(self, width=8, size=12):
        super().__init__()
        self.encoder = nn.Linear(6, width)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(width, size)))
        self.pointer = 0
        self.size = size

    def enqueue(self, keys):
        n = keys.shape[0]
        self.queue[:, self.pointer : self.pointer + n] = keys.T
        self.pointer = (self.pointer + n) % self.size

    def forward(self, x):
        q = nn.functional.normalize(self.encoder(x), dim=1)
        logits = q @ self.queue.clone()
        self.enqueue(q.detach())
        return logits


def make():
    return Contrast(), [(torch.randn(4, 6),) for _ in range(5)]


# %% vq_codebook_restart
import torch
from torch import nn


class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(8, 4))
        self.register_buffer("usage", torch.zeros(8))

    def forward(self, z):
        distances = torch.cdist(z, self.codes)
        index = distances.argmin(1)
        self.usage.mul_(0.9).add_(torch.bincount(index, minlength=8), alpha=0.1)
        if self.training and (self.usage < 0.01).any():
            print("dead codes:", (self.usage < 0.01).sum().item())
        return z + (self.codes[index] - z).detach()


def make():
    return Quantizer().train(), [(torch.randn(16, 4),) for _ in range(3)]


# %% scheduled_sampling
import random

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.cell = nn.GRUCell(8, 8)
        self.out = nn.Linear(8, 12)

    def forward(self, targets, hidden, ratio):
        token = targets[:, 0]
        logits = []
        for t in range(1, targets.shape[1]):
            hidden = self.cell(self.embed(token), hidden)
            step = self.out(hidden)
            logits.append(step)
            token = targets[:, t] if random.random() < ratio else step.argmax(-1)
        return torch.stack(logits, 1)


def make():
    calls = []
    for ratio in (1.0, 0.9, 0.8, 0.7):
        calls.append((torch.randint(0, 12, (2, 5)), torch.zeros(2, 8), ratio))
    return Decoder(), calls


# %% nms_loop
import torch


def nms(boxes, scores, threshold):
    order = scores.argsort(descending=True)
    kept = []
    while order.numel() > 0:
        best = order[0].item()
        kept.append(best)
        if order.numel() == 1:
            break
        rest = order[1:]
        low = torch.maximum(boxes[best, :2], boxes[rest, :2])
        high = torch.minimum(boxes[best, 2:], boxes[rest, 2:])
        area = (high - low).clamp(min=0).prod(1)
        order = rest[area < threshold]
    return torch.tensor(kept)


def make():
    def boxes():
        low = torch.rand(6, 2)
        return torch.cat([low, low + torch.rand(6, 2)], 1)

    return nms, [(boxes(), torch.rand(6), 0.1) for _ in range(3)]


# %% viterbi
import torch


def viterbi(emissions, transitions, mask):
    lengths = mask.sum(1).long().tolist()
    score = emissions[:, 0]
    history = []
    for t in range(1, emissions.shape[1]):
        best, index = (score.unsqueeze(2) + transitions).max(1)
        score = torch.where(mask[:, t, None], best + emissions[:, t], score)
        history.append(index)
    paths = []
    for i, length in enumerate(lengths):
        tag = score[i].argmax().item()
        path = [tag]
        for index in reversed(history[: length - 1]):
            tag = index[i, tag].item()
            path.append(tag)
        paths.append(path[::-1])
    return score.max(1).values, paths


def make():
    calls = []
    for _ in range(2):
        mask = torch.ones(2, 4, dtype=torch.bool)
        mask[1, 3] = False
        calls.append((torch.randn(2, 4, 3), torch.randn(3, 3), mask))
    return viterbi, calls


# %% running_statistics
import torch
from torch import nn


class Normaliser(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("square", torch.ones(width))
        self.count = 0

    def forward(self, x):
        if self.training:
            self.count += x.shape[0]
            rate = x.shape[0] / self.count
            self.mean += rate * (x.mean(0) - self.mean)
            self.square += rate * ((x**2).mean(0) - self.square)
        return (x - self.mean) / (self.square - self.mean**2).clamp(min=1e-4).sqrt()


def make():
    return Normaliser(3).train(), [(torch.randn(5, 3),) for _ in range(5)]


# %% diffusion_sampler
import torch
from torch import nn


class Sampler(nn.Module):
    def __init__(self, steps=50):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 4))
        self.betas = torch.linspace(1e-4, 0.02, steps)
        self.alphas = torch.cumprod(1 - self.betas, 0)

    def forward(self, x, t):
        a = self.alphas[t]
        noise = self.net(torch.cat([x, torch.full_like(x[:, :1], t / 50)], 1))
        mean = (x - self.betas[t] / (1 - a).sqrt() * noise) / (1 - self.betas[t]).sqrt()
        if t > 0:
            mean = mean + self.betas[t].sqrt() * torch.randn_like(x)
        return mean


def make():
    return Sampler(), [(torch.randn(2, 4), t) for t in (5, 4, 3, 2, 1, 0)]


# %% gan_step_updates_both
import torch
from torch import nn

generator = nn.Linear(4, 6)
critic = nn.Linear(6, 1)
g_optimizer = torch.optim.SGD(generator.parameters(), lr=0.01)
c_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)


def step(real, z):
    c_optimizer.zero_grad()
    fake = generator(z)
    c_loss = critic(fake.detach()).mean() - critic(real).mean()
    c_loss.backward()
    c_optimizer.step()
    g_optimizer.zero_grad()
    g_loss = -critic(generator(z)).mean()
    g_loss.backward()
    g_optimizer.step()
    return c_loss.detach(), g_loss.detach()


def make():
    return step, [(torch.randn(8, 6), torch.randn(8, 4)) for _ in range(3)]


# %% meter_of_losses
import torch
from torch import nn


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n):
        self.total += value * n
        self.count += n


meter = Meter()
net = nn.Linear(5, 3)


def train_step(x, y):
    loss = nn.functional.cross_entropy(net(x), y)
    meter.update(loss.item(), x.shape[0])
    return loss


def make():
    return train_step, [
        (torch.randn(4, 5), torch.randint(0, 3, (4,))) for _ in range(4)
    ]


# %% accuracy_in_training_step
import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
        self.best = 0.0

    def forward(self, x, y):
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        accuracy = (logits.argmax(1) == y).float().mean().item()
        if accuracy > self.best:
            self.best = accuracy
        return loss, accuracy


def make():
    return Classifier(), [
        (torch.randn(9, 6), torch.randint(0, 4, (9,))) for _ in range(3)
    ]


# %% gradient_norm_logger
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
norms = {}


def loss_of(x):
    loss = model(x).square().mean()
    for name, parameter in model.named_parameters():
        norms[name] = parameter.detach().norm().item()
    return loss


def make():
    return loss_of, [(torch.randn(3, 4),) for _ in range(3)]


# %% tqdm_description
import torch
from torch import nn


class Progress:
    def __init__(self):
        self.text = ""

    def set_description(self, text):
        self.text = text


bar = Progress()
net = nn.Linear(4, 1)


def step(x, index):
    loss = net(x).pow(2).mean()
    bar.set_description(f"step {index}: loss {loss.item():.3f}")
    return loss


def make():
    return step, [(torch.randn(3, 4), i) for i in range(5)]


# %% curriculum_by_epoch
import torch
from torch import nn


class Curriculum(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 6)
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def forward(self, x):
        keep = min(6, 2 + self.epoch)
        masked = x * (torch.arange(6) < keep)
        return self.net(masked)


model = Curriculum()


def before_call(fn, index):
    model.set_epoch(index)


def make():
    return model, [(torch.randn(2, 6),) for _ in range(6)]


# %% dropout_rate_schedule
import torch
from torch import nn


class Scheduled(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        return self.drop(self.a(x))


model = Scheduled().eval()


def before_call(fn, index):
    model.drop.p = 0.1 * index


def make():
    return model, [(torch.randn(2, 6),) for _ in range(5)]


# %% temperature_annealing
import math

import torch
from torch import nn


class Gumbel(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Linear(5, 3)
        self.step = 0

    def temperature(self):
        return max(0.5, math.exp(-0.1 * self.step))

    def forward(self, x):
        self.step += 1
        return torch.softmax(self.logits(x) / self.temperature(), -1)


def make():
    return Gumbel(), [(torch.randn(2, 5),) for _ in range(5)]


# %% stochastic_depth_python_random
import random

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, p=0.3):
        super().__init__()
        self.p = p
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            if self.training and random.random() < self.p:
                continue
            x = x + block(x).relu()
        return x


def make():
    return Residual().train(), [(torch.randn(2, 4),) for _ in range(4)]


# %% tree_recursion
import torch
from torch import nn


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.leaf = nn.Embedding(10, 6)
        self.join = nn.Linear(12, 6)

    def encode(self, node):
        if isinstance(node, int):
            return self.leaf(torch.tensor(node))
        left, right = node
        both = torch.cat([self.encode(left), self.encode(right)])
        return torch.tanh(self.join(both))

    def forward(self, node):
        return self.encode(node)


def make():
    return Tree(), [((1, (2, 3)),), (((4, 5), 6),), ((7, 8),), (((1, 2), (3, 4)),)]


# %% audio_frames_of_any_length
import torch
from torch import nn


class Frames(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 4)

    def forward(self, wave):
        if wave.shape[-1] % 8 != 0:
            wave = nn.functional.pad(wave, (0, 8 - wave.shape[-1] % 8))
        frames = wave.unfold(-1, 8, 8)
        return self.proj(frames).mean(1)


def make():
    return Frames(), [(torch.randn(2, n),) for n in (32, 37, 48, 51)]


# %% image_tiles
import torch
from torch import nn


class Tiles(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image):
        _, h, w = image.shape
        tiles = []
        for top in range(0, h, 8):
            for left in range(0, w, 8):
                tiles.append(image[:, top : top + 8, left : left + 8])
        return self.conv(torch.stack(tiles)).mean((2, 3))


def make():
    return Tiles(), [(torch.randn(3, h, w),) for h, w in ((8, 16), (16, 16), (24, 16))]


# %% top_k_experts
import torch
from torch import nn


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)])

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, slot = (chosen == i).nonzero(as_tuple=True)
            if len(token) == 0:
                continue
            out[token] += weights[token, slot, None] * expert(x[token])
        return out


def make():
    return MoE(), [(torch.randn(7, 6),) for _ in range(3)]


# %% nan_check_raises
import torch
from torch import nn


class Safe(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        y = self.a(x)
        if torch.isnan(y).any():
            raise ValueError("NaN in the output")
        return y.exp()


def make():
    return Safe(), [(torch.randn(3, 4),) for _ in range(3)]


# %% loss_scaling_by_hand
import torch
from torch import nn


class Scaler:
    def __init__(self):
        self.scale = 1024.0
        self.good = 0

    def update(self, finite):
        if not finite:
            self.scale /= 2
            self.good = 0
        else:
            self.good += 1
            if self.good % 2 == 0:
                self.scale *= 2


scaler = Scaler()
net = nn.Linear(3, 1)


def step(x):
    loss = net(x).square().mean() * scaler.scale
    finite = bool(torch.isfinite(loss))
    scaler.update(finite)
    return loss


def make():
    return step, [(torch.randn(4, 3),) for _ in range(5)]


# %% cosine_rate_in_step
import math

import torch
from torch import nn

weight = torch.randn(4)
state = {"step": 0}


def update(gradient):
    state["step"] += 1
    rate = 0.5 * (1 + math.cos(math.pi * state["step"] / 100))
    weight.sub_(rate * gradient)
    return weight.clone()


def make():
    return update, [(torch.randn(4),) for _ in range(5)]


# %% cache_of_past_frames
import torch
from torch import nn


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3)
        self.past = None

    def forward(self, x):
        if self.past is None:
            self.past = x.new_zeros(x.shape[0], 2, 2)
        x = torch.cat([self.past, x], -1)
        self.past = x[..., -2:].detach()
        return self.conv(x)


def make():
    return Causal(), [(torch.randn(1, 2, 6),) for _ in range(4)]


# %% hidden_states_as_dict
import torch
from torch import nn


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x, wanted=()):
        found = {}
        for i, layer in enumerate(self.layers):
            x = layer(x).relu()
            if i in wanted:
                found[f"layer_{i}"] = x
        return x, found


def make():
    calls = [(torch.randn(2, 4), w) for w in ((), (1,), (0, 2), (1,))]
    return Stack(), calls


# %% positions_from_mask
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.positions = nn.Embedding(16, 8)

    def forward(self, ids):
        mask = ids != 0
        longest = int(mask.sum(1).max())
        ids, mask = ids[:, :longest], mask[:, :longest]
        h = self.tokens(ids) + self.positions(torch.arange(longest))
        return (h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)


def make():
    calls = []
    for n in (5, 7, 4):
        ids = torch.zeros(2, 10, dtype=torch.long)
        ids[:, :n] = torch.randint(1, 20, (2, n))
        calls.append((ids,))
    return Encoder(), calls


# %% hard_negative_mining
import torch
from torch import nn


class Mined(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)

    def forward(self, x, y):
        losses = nn.functional.cross_entropy(self.net(x), y, reduction="none")
        positives = y == 1
        n = int(positives.sum()) * 3
        negatives = losses[~positives].sort(descending=True).values[:n]
        return losses[positives].sum() + negatives.sum()


def make():
    calls = []
    for _ in range(3):
        y = torch.tensor([1, 0, 0, 0, 0, 1, 0, 0, 0, 0])
        calls.append((torch.randn(10, 4), y[torch.randperm(10)]))
    return Mined(), calls


# %% graph_message_passing
import torch
from torch import nn


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(5, 5)

    def forward(self, x, edges):
        n = int(edges.max()) + 1
        source, target = edges
        out = torch.zeros(n, 5).index_add_(0, target, self.lin(x)[source])
        degree = torch.bincount(target, minlength=n).clamp(min=1)
        return out / degree.unsqueeze(1)


def make():
    def edges():
        e = torch.randint(0, 6, (2, 14))
        e[0, 0] = 5
        return e

    return GCN(), [(torch.randn(6, 5), edges()) for _ in range(3)]


# %% checks_shapes_with_messages
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.heads = heads

    def forward(self, x):
        if x.dim() != 3:
            raise ValueError(f"expected (batch, length, width), got {tuple(x.shape)}")
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).reshape(b, n, c)


def make():
    return Attention(), [(torch.randn(2, n, 8),) for n in (4, 6, 9)]


# %% timing_of_layers
import time

import torch
from torch import nn


class Timed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.times = []

    def forward(self, x):
        for layer in self.layers:
            start = time.perf_counter()
            x = layer(x).relu()
            self.times.append(time.perf_counter() - start)
        return x


def make():
    return Timed(), [(torch.randn(2, 4),) for _ in range(3)]


# %% logs_every_hundredth
import logging

import torch
from torch import nn

logger = logging.getLogger(__name__)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 2)
        self.seen = 0

    def forward(self, x):
        y = self.lin(x)
        self.seen += 1
        if self.seen % 2 == 0:
            logger.info("seen %d batches, mean %.3f", self.seen, y.mean())
        return y


def make():
    return Net(), [(torch.randn(2, 4),) for _ in range(5)]


# %% freezes_encoder
import torch
from torch import nn


class FineTune(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        with torch.set_grad_enabled(self.encoder.weight.requires_grad):
            h = self.encoder(x).relu()
        return self.head(h)


model = FineTune()


def before_call(fn, index):
    model.encoder.requires_grad_(index >= 2)


def make():
    return model, [(torch.randn(3, 4),) for _ in range(4)]


# %% optional_conditioning
import torch
from torch import nn


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 2, 3, padding=1)
        self.label = nn.Embedding(4, 2)

    def forward(self, x, label=None):
        h = self.body(x)
        if label is not None:
            h = h + self.label(label)[:, :, None, None]
        return h


def make():
    x = torch.randn(2, 1, 6, 6)
    y = torch.tensor([0, 3])
    return UNet(), [(x,), (x, y), (x,), (x, y), (x,)]


# %% batch_size_of_the_rest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(22, 4), torch.randint(0, 2, (22,)))
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def loss_of(x, y):
    return nn.functional.cross_entropy(net(x), y)


def make():
    return loss_of, [tuple(batch) for batch in DataLoader(data, batch_size=8)]


# %% sentences_collated
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

sentences = [torch.randint(1, 30, (n,)) for n in (3, 5, 9, 4, 12, 7, 6, 11, 2, 8)]


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 6, padding_idx=0)
        self.head = nn.Linear(6, 2)

    def forward(self, ids):
        mask = (ids != 0).unsqueeze(-1)
        return self.head((self.embed(ids) * mask).sum(1) / mask.sum(1))


def collate(batch):
    return pad_sequence(batch, batch_first=True)


def make():
    loader = DataLoader(sentences, batch_size=2, collate_fn=collate)
    return Bag(), [(ids,) for ids in loader]


# %% lambda_in_config
from dataclasses import dataclass, field
from collections.abc import Callable

import torch
from torch import nn


@dataclass
class Config:
    width: int = 6
    act: Callable = field(default=lambda x: x * torch.sigmoid(x))


class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.lin = nn.Linear(config.width, config.width)

    def forward(self, x):
        return self.config.act(self.lin(x))


def make():
    return Net(Config()), [(torch.randn(2, 6),) for _ in range(2)]


# %% numpy_augmentation
import numpy as np
import torch
from torch import nn


class Augmented(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def forward(self, x):
        if self.training:
            shift = np.random.randint(0, 3)
            x = torch.roll(x, shifts=int(shift), dims=1)
        return self.net(x)


def make():
    return Augmented().train(), [(torch.randn(2, 6),) for _ in range(4)]


# %% reward_normaliser
import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)
        self.rewards = []

    def forward(self, state, reward):
        self.rewards.append(float(reward))
        mean = sum(self.rewards) / len(self.rewards)
        logits = self.net(state)
        return logits.log_softmax(-1) * (reward - mean)


def make():
    return Policy(), [(torch.randn(4), torch.randn(())) for _ in range(4)]


# %% sampling_from_policy
import torch
from torch import nn
from torch.distributions import Categorical


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, state):
        choice = Categorical(logits=self.net(state))
        action = choice.sample()
        return action, choice.log_prob(action), choice.entropy()


def make():
    return Actor(), [(torch.randn(5, 4),) for _ in range(3)]


# %% speculative_accept
import torch


def accept(draft, probabilities, uniform):
    count = 0
    for i in range(draft.shape[0]):
        if uniform[i] > probabilities[i, draft[i]]:
            break
        count += 1
    return draft[:count]


def make():
    calls = []
    for _ in range(3):
        p = torch.rand(4, 6).softmax(-1)
        calls.append((torch.randint(0, 6, (4,)), p, torch.rand(4) * 0.3))
    return accept, calls


# %% config_string_switch
import torch
from torch import nn


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, how="mean"):
        h = self.lin(x)
        if how == "mean":
            return h.mean(1)
        if how == "max":
            return h.amax(1)
        return h[:, 0]


def make():
    x = torch.randn(2, 5, 4)
    return Pool(), [(x, how) for how in ("mean", "max", "first", "max", "mean")]


# %% weights_by_class_count
import torch
from torch import nn


class Balanced(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x, y):
        weights = torch.ones(3)
        for c in y.unique():
            weights[c] = 1.0 / (y == c).sum()
        return nn.functional.cross_entropy(self.net(x), y, weight=weights)


def make():
    return Balanced(), [
        (torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(3)
    ]


# %% saves_best_checkpoint
import copy

import torch
from torch import nn

net = nn.Linear(4, 1)
best = {"loss": float("inf"), "state": None}


def evaluate(x, y):
    with torch.no_grad():
        loss = nn.functional.mse_loss(net(x), y)
    if loss < best["loss"]:
        best["loss"] = loss.item()
        best["state"] = copy.deepcopy(net.state_dict())
    return loss


def make():
    return evaluate, [(torch.randn(5, 4), torch.randn(5, 1)) for _ in range(3)]


# %% detections_per_image
import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(2, 5, 1)

    def forward(self, images):
        out = self.head(images).flatten(2).transpose(1, 2)
        results = []
        for each in out:
            keep = each[:, 4].sigmoid() > 0.5
            results.append({"boxes": each[keep, :4], "scores": each[keep, 4]})
        return results


def make():
    return Detector(), [(torch.randn(2, 2, 4, 4),) for _ in range(3)]


# %% writes_into_numpy
import numpy as np
import torch
from torch import nn


class Recorder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.history = np.zeros((10, 4))
        self.row = 0

    def forward(self, x):
        y = self.net(x)
        self.history[self.row] = y[0].detach().numpy()
        self.row += 1
        return y


def make():
    return Recorder(), [(torch.randn(2, 4),) for _ in range(4)]


# %% teacher_update
import torch
from torch import nn

student = nn.Linear(4, 4)
teacher = nn.Linear(4, 4).requires_grad_(False)
steps = {"n": 0}


def distill(x):
    steps["n"] += 1
    decay = min(0.99, steps["n"] / (steps["n"] + 10))
    loss = (student(x) - teacher(x)).square().mean()
    with torch.no_grad():
        for s, t in zip(student.parameters(), teacher.parameters()):
            t.mul_(decay).add_(s, alpha=1 - decay)
    return loss


def make():
    return distill, [(torch.randn(3, 4),) for _ in range(5)]


# %% interpolated_positions
import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 8, 4, 4))
        self.patch = nn.Conv2d(3, 8, 4, 4)

    def forward(self, image):
        x = self.patch(image)
        if x.shape[-2:] != self.table.shape[-2:]:
            table = nn.functional.interpolate(self.table, x.shape[-2:], mode="bilinear")
        else:
            table = self.table
        return (x + table).flatten(2)


def make():
    return Positions(), [(torch.randn(1, 3, n, n),) for n in (16, 24, 32, 16)]
