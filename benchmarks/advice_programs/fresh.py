"""Programs that were written last: nobody saw them before they were measured.

Each cell is a module.
"""

# %% fresh_clip_by_value_logged
import torch
from torch import nn

history = []


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 5)

    def forward(self, x):
        y = self.fc(x)
        largest = y.abs().max()
        if largest > 3.0:
            y = y * (3.0 / largest)
        history.append(largest.item())
        return y


def make():
    return Block(), [(torch.randn(3, 5),) for _ in range(4)]


# %% fresh_labels_to_list
import torch
from torch import nn

NAMES = ["cat", "dog", "bird"]


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        scores = self.fc(x).softmax(-1)
        best = scores.argmax(-1)
        return scores, [NAMES[i] for i in best.tolist()]


def make():
    return Tagger(), [(torch.randn(4, 5),) for _ in range(3)]


# %% fresh_mask_ratio_random
import random

import torch
from torch import nn


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(6, 6)

    def forward(self, x):
        ratio = random.uniform(0.3, 0.7)
        mask = torch.rand(x.shape[:2]) < ratio
        return self.enc(x.masked_fill(mask.unsqueeze(-1), 0.0))


def make():
    return Masked(), [(torch.ones(2, 4, 6),) for _ in range(4)]


# %% fresh_layerwise_learning
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.depth = 1

    def grow(self):
        self.depth = min(3, self.depth + 1)

    def forward(self, x):
        for layer in self.layers[: self.depth]:
            x = torch.relu(layer(x))
        return x


model = Model()


def before_call(fn, index):
    if index % 2:
        model.grow()


def make():
    return model, [(torch.randn(2, 4),) for _ in range(6)]


# %% fresh_running_max
import torch
from torch import nn


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.high = float("-inf")
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        self.high = max(self.high, y.max().item())
        return y / self.high


def make():
    return Observer(), [(torch.randn(3, 4).abs() + i,) for i in range(4)]


# %% fresh_pad_to_longest_in_step
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence


class Pooler(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)

    def forward(self, sequences):
        batch = pad_sequence(sequences, batch_first=True)
        mask = (batch > 0).unsqueeze(-1)
        return (self.embed(batch) * mask).sum(1) / mask.sum(1)


def make():
    def batch(*lengths):
        return [torch.randint(1, 30, (n,)) for n in lengths]

    return Pooler(), [(batch(3, 5),), (batch(6, 2),), (batch(4, 9),), (batch(7, 8),)]


# %% fresh_print_shapes
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        print("in:", x.shape)
        x = self.a(x)
        print("hidden:", x.shape, x.dtype)
        return self.b(x)


def make():
    return Net(), [(torch.randn(2, 4),) for _ in range(2)]


# %% fresh_assert_probabilities
import torch
from torch import nn


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, p):
        assert torch.allclose(p.sum(-1), torch.ones(p.shape[0])), "not probabilities"
        return self.fc(x) * p


def make():
    return Mix(), [(torch.randn(2, 4), torch.randn(2, 4).softmax(-1)) for _ in range(2)]


# %% fresh_dynamic_threshold
import numpy as np
import torch
from torch import nn


class Threshold(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        score = self.fc(x).squeeze(-1)
        limit = np.median(score.detach().numpy())
        return (score > float(limit)).float()


def make():
    return Threshold(), [(torch.randn(9, 4),) for _ in range(3)]


# %% fresh_token_loop_until_end
import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 6)
        self.out = nn.Linear(6, 12)

    def forward(self, token, limit=5):
        tokens = [token]
        while len(tokens) < limit:
            token = self.out(self.embed(token)).argmax(-1)
            tokens.append(token)
            if token.item() == 0:
                break
        return torch.stack(tokens)


def make():
    return Generator(), [(torch.tensor(i),) for i in (3, 5, 7)]


# %% fresh_center_loss
import torch
from torch import nn


class CenterLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(3, 4))

    def forward(self, x, y):
        loss = x.new_zeros(())
        for c in range(3):
            members = x[y == c]
            if members.shape[0] > 0:
                loss = loss + (members - self.centers[c]).square().sum()
        return loss


def make():
    return CenterLoss(), [
        (torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(3)
    ]


# %% fresh_frozen_every_second
import torch
from torch import nn


class Alternating(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.turn = 0

    def forward(self, x):
        self.turn += 1
        if self.turn % 2 == 0:
            return self.a(x).detach() + self.b(x)
        return self.a(x) + self.b(x).detach()


def make():
    return Alternating(), [(torch.randn(2, 4),) for _ in range(6)]


# %% fresh_bag_of_features_dict
import torch
from torch import nn


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleDict(
            {k: nn.Linear(3, 4) for k in ("age", "text", "image")}
        )

    def forward(self, batch):
        return sum(self.nets[name](value) for name, value in sorted(batch.items()))


def make():
    def batch(*names):
        return {name: torch.randn(2, 3) for name in names}

    every = ("age", "text", "image")
    return Features(), [
        (batch(*every),),
        (batch("age"),),
        (batch(*every),),
        (batch("age"),),
    ]


# %% fresh_checkpoint_counter_file
import torch
from torch import nn

steps = 0
net = nn.Linear(4, 1)


def train_step(x, y):
    global steps
    steps += 1
    loss = nn.functional.mse_loss(net(x), y)
    if steps % 3 == 0:
        print(f"step {steps}: {loss.item():.4f}")
    return loss


def make():
    return train_step, [(torch.randn(5, 4), torch.randn(5, 1)) for _ in range(7)]


# %% fresh_sample_and_reject
import torch


def sample(mean, scale):
    x = mean + scale * torch.randn_like(mean)
    tries = 0
    while (x < 0).any() and tries < 3:
        x = torch.where(x < 0, mean + scale * torch.randn_like(mean), x)
        tries += 1
    return x.clamp(min=0)


def make():
    return sample, [(torch.ones(4), 0.1) for _ in range(3)]


# %% fresh_relative_positions_cached
import torch
from torch import nn


class Bias(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 2)
        self.cached = None
        self.length = 0

    def forward(self, scores):
        n = scores.shape[-1]
        if n != self.length:
            place = torch.arange(n)
            self.cached = place[:, None] - place[None] + 31
            self.length = n
        return scores + self.table(self.cached).permute(2, 0, 1)


def make():
    return Bias(), [(torch.randn(1, 2, n, n),) for n in (8, 8, 12, 8)]


# %% fresh_focal_alpha_by_count
import torch
from torch import nn


class Focal(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x, y):
        positives = int(y.sum())
        alpha = positives / y.numel() if positives else 0.5
        p = self.fc(x).squeeze(-1).sigmoid()
        return -(alpha * y * p.log() + (1 - alpha) * (1 - y) * (1 - p).log()).mean()


def make():
    return Focal(), [
        (torch.randn(8, 4), (torch.rand(8) > 0.5).float()) for _ in range(3)
    ]


# %% fresh_profiler_range
import torch
from torch import nn
from torch.profiler import record_function


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        with record_function("first"):
            x = self.a(x).relu()
        with record_function("second"):
            return self.b(x)


def make():
    return Net(), [(torch.randn(2, 4),) for _ in range(2)]


# %% fresh_gradient_accumulation
import torch
from torch import nn

net = nn.Linear(4, 2)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
count = {"batches": 0}


def step(x, y):
    loss = nn.functional.cross_entropy(net(x), y) / 2
    loss.backward()
    count["batches"] += 1
    if count["batches"] % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


def make():
    return step, [(torch.randn(4, 4), torch.randint(0, 2, (4,))) for _ in range(4)]


# %% fresh_early_return_empty
import torch
from torch import nn


class RoIHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, features, scores):
        keep = torch.nonzero(scores > 0.5).squeeze(1)
        if keep.numel() == 0:
            return features.new_zeros(0, 2)
        return self.fc(features[keep])


def make():
    return RoIHead(), [(torch.randn(9, 4), torch.rand(9)) for _ in range(3)]


# %% fresh_string_modes_and_flags
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x, return_dict=False, labels=None):
        logits = self.fc(x)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits} if return_dict else (loss, logits)


def make():
    x, y = torch.randn(2, 4), torch.tensor([0, 2])
    calls = [(x,), (x, True), (x, True, y), (x, False, y), (x, True, y), (x,)]
    return Head(), calls


# %% fresh_top_p_filter
import torch


def top_p(logits, p):
    ordered, index = logits.sort(descending=True)
    total = ordered.softmax(-1).cumsum(-1)
    count = int((total < p).sum()) + 1
    allowed = index[:count]
    out = torch.full_like(logits, float("-inf"))
    out[allowed] = logits[allowed]
    return out.softmax(-1)


def make():
    return top_p, [(torch.randn(12), p) for p in (0.5, 0.8, 0.9)]


# %% fresh_uncertainty_weights
import math

import torch
from torch import nn


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.logs = nn.Parameter(torch.zeros(2))

    def forward(self, losses):
        total = 0.0
        for value, log in zip(losses, self.logs):
            total = total + value * math.exp(-log) + log
        return total


def make():
    return Weighted(), [([torch.rand(()), torch.rand(())],) for _ in range(3)]


# %% fresh_wandb_like_logger
import torch
from torch import nn


class Run:
    def __init__(self):
        self.rows = []

    def log(self, values, step=None):
        self.rows.append((step, dict(values)))


run = Run()


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.global_step = 0

    def forward(self, x, y):
        prediction = self.net(x)
        loss = (prediction - y).square().mean()
        self.global_step += 1
        run.log(
            {"loss": loss.item(), "mean": prediction.mean().item()}, self.global_step
        )
        return loss


def make():
    return Trainer(), [(torch.randn(6, 4), torch.randn(6, 1)) for _ in range(4)]
