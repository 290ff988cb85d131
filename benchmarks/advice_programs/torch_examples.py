"""Programs in which torch itself says that it cannot trace something.

The situations are those of torch's tests of its own error messages and of its registry
of graph breaks; the programs are models that get into them. Each cell is a module.
"""

# %% lstsq_probe
import torch
from torch import nn


class LinearProbe(nn.Module):
    """Fits a read-out of frozen features in closed form."""

    def __init__(self):
        super().__init__()
        self.features = nn.Linear(6, 4)

    def forward(self, x, target):
        h = torch.tanh(self.features(x))
        solution = torch.linalg.lstsq(h, target).solution
        return h @ solution


def make():
    return LinearProbe(), [(torch.randn(12, 6), torch.randn(12, 2)) for _ in range(3)]


# %% equal_to_last_prompt
import torch
from torch import nn


class PromptCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 8)
        self.prompt = torch.zeros(1, 8)
        self.encoded = torch.zeros(1, 8)

    def forward(self, prompt, x):
        if not torch.equal(prompt, self.prompt):
            self.prompt = prompt
            self.encoded = self.encoder(prompt)
        return x + self.encoded


def make():
    prompts = [torch.ones(1, 8), torch.ones(1, 8), torch.full((1, 8), 2.0)]
    return PromptCache(), [(p, torch.randn(3, 8)) for p in prompts]


# %% sorted_losses
import torch
from torch import nn

heads = nn.ModuleList([nn.Linear(5, 1) for _ in range(4)])


def trimmed_mean(x, y):
    losses = [((head(x) - y) ** 2).mean() for head in heads]
    kept = sorted(losses)[1:-1]
    return torch.stack(kept).mean()


def make():
    return trimmed_mean, [(torch.randn(6, 5), torch.randn(6, 1)) for _ in range(3)]


# %% zip_made_outside
import torch


def fuse(pairs, bias):
    total = torch.zeros_like(bias)
    for weight, feature in pairs:
        total = total + weight * feature
    return total + bias


def make():
    def call():
        features = [torch.randn(4) for _ in range(3)]
        return zip([0.5, 0.3, 0.2], features), torch.ones(4)

    return fuse, [call() for _ in range(3)]


# %% items_of_losses
import torch


def weighted_sum(named_losses, scale):
    total = 0.0
    for name, loss in named_losses:
        factor = 0.1 if name.startswith("aux") else 1.0
        total = total + factor * loss.mean()
    return total * scale


def make():
    def losses():
        return {"main": torch.randn(4), "aux_length": torch.randn(4)}

    return weighted_sum, [(losses().items(), torch.tensor(2.0)) for _ in range(2)]


# %% timed_section
import time

import torch
from torch import nn


class Timed:
    def __init__(self, times, name):
        self.times, self.name = times, name

    def __enter__(self):
        self.begin = time.perf_counter()

    def __exit__(self, *error):
        self.times.setdefault(self.name, []).append(time.perf_counter() - self.begin)


class Profiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)
        self.times = {}

    def forward(self, x):
        with Timed(self.times, "body"):
            x = torch.relu(self.body(x))
        with Timed(self.times, "head"):
            return self.head(x)


def make():
    return Profiled(), [(torch.randn(4, 8),) for _ in range(3)]


# %% prints_shape
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        x = self.proj(x)
        print("after projection", x.shape)
        return self.norm(x)


def make():
    return Encoder(), [(torch.randn(2, 8),) for _ in range(3)]


# %% warns_about_range
import warnings

import torch
from torch import nn


class Quantizer(nn.Module):
    def __init__(self, bits):
        super().__init__()
        self.levels = 2**bits - 1
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        if self.levels < 15:
            warnings.warn("fewer than 4 bits lose accuracy")
        y = self.inner(x)
        low, high = y.min(), y.max()
        step = (high - low) / self.levels
        return torch.round((y - low) / step) * step + low


def make():
    return Quantizer(3), [(torch.randn(3, 4),) for _ in range(3)]


# %% logs_each_call
import logging

import torch
from torch import nn

log = logging.getLogger("model")


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 3))

    def forward(self, x):
        log.info("batch of %d", len(x))
        logits = self.net(x)
        log.debug("logits: %s", logits.shape)
        return logits.softmax(-1)


def make():
    return Classifier(), [(torch.randn(4, 6),) for _ in range(3)]


# %% clock_in_forward
import time

import torch
from torch import nn


class Server(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.seconds = 0.0

    def forward(self, x):
        begin = time.time()
        y = torch.sigmoid(self.lin(x))
        self.seconds += time.time() - begin
        return y


def make():
    return Server(), [(torch.randn(2, 8),) for _ in range(4)]


# %% break_left_from_debugging
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) / 8**0.5
        torch._dynamo.graph_break()
        return scores.softmax(-1) @ v


def make():
    return Attention(), [(torch.randn(2, 5, 8),) for _ in range(2)]


# %% disabled_augmentation
import torch
from torch import nn


@torch.compiler.disable
def jitter(x):
    return x + 0.1 * torch.arange(x.shape[-1])


class Augmented(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 3, 3, padding=1)

    def forward(self, x):
        return self.conv(jitter(x)).relu()


def make():
    return Augmented(), [(torch.randn(2, 3, 16),) for _ in range(2)]


# %% class_in_forward
import torch
from torch import nn


def forward_with_state(weight, x):
    class State:
        def __init__(self, hidden):
            self.hidden = hidden

    state = State(x @ weight)
    for _ in range(3):
        state.hidden = torch.tanh(state.hidden @ weight)
    return state.hidden


def make():
    weight = nn.Parameter(torch.randn(4, 4) / 2)
    return forward_with_state, [(weight, torch.randn(3, 4)) for _ in range(2)]


# %% returns_bound_method
import torch
from torch import nn


class Decoder:
    def __init__(self, scale):
        self.scale = scale

    def decode(self, x):
        return x * self.scale


class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        code = self.lin(x)
        return code, Decoder(2.0).decode


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.codec = Codec()

    def forward(self, x):
        code, decode = self.codec(x)
        print("decode with", decode.__name__)
        return decode(code)


def make():
    return Both(), [(torch.randn(2, 4),) for _ in range(2)]


# %% custom_op_without_fake
import torch
from torch import nn


@torch.library.custom_op("advice_programs::soft_clip", mutates_args=())
def soft_clip(x: torch.Tensor, limit: float) -> torch.Tensor:
    return limit * torch.tanh(x / limit)


class Clipped(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 6)

    def forward(self, x):
        return soft_clip(self.lin(x), 3.0) + 1


def make():
    return Clipped().requires_grad_(False), [(torch.randn(2, 6),) for _ in range(2)]


# %% branch_on_sum
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(5, 5)

    def forward(self, x):
        y = self.a(x)
        if y.sum() > 0:
            y = torch.sin(y)
        else:
            y = torch.cos(y)
        return y * 2


def make():
    return Gate(), [(torch.randn(3, 5),) for _ in range(5)]


# %% branch_in_loop
import torch


def newton(x, steps=4):
    guess = x / 2 + 0.5
    for _ in range(steps):
        update = 0.5 * (guess + x / guess)
        if (update - guess).abs().max() < 1e-3:
            break
        guess = update
    return guess


def make():
    return newton, [(torch.rand(6) + 0.5,) for _ in range(3)]


# %% branch_under_manager_in_loop
import torch
from torch import nn


class Scope:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


class Refine(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x):
        for i in range(3):
            with Scope(f"step {i}"):
                if x.norm() > 1:
                    x = x / x.norm()
                x = x + self.step(x)
        return x


def make():
    return Refine(), [(torch.randn(2, 4),) for _ in range(3)]


# %% assert_finite_in_manager
import contextlib

import torch
from torch import nn


@contextlib.contextmanager
def stage(name):
    yield name


class Checked(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        with stage("projection"):
            y = self.lin(x)
            assert torch.isfinite(y).all(), "the projection overflowed"
        return y.exp()


def make():
    return Checked(), [(torch.randn(2, 4),) for _ in range(2)]


# %% traced_attribute_writes
import torch


class Recorder:
    def __setattr__(self, name, value):
        print("set", name)
        object.__setattr__(self, name, value)


def run(x):
    state = Recorder()
    state.mean = x.mean(0)
    state.std = x.std(0)
    return (x - state.mean) / state.std


def make():
    return run, [(torch.randn(8, 4),) for _ in range(2)]


# %% break_three_functions_down
import torch
from torch import nn

seen = []


def note(h):
    seen.append(float(h.mean()))
    return h


def block(lin, h):
    return note(torch.relu(lin(h)))


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(2)])

    def forward(self, x):
        for lin in self.layers:
            x = block(lin, x)
        return x


def make():
    return Deep(), [(torch.randn(2, 6),) for _ in range(2)]


# %% generator_with_read
import torch


def chunks(x, size):
    begin = 0
    while begin < len(x):
        part = x[begin : begin + size]
        if part.abs().max().item() > 0:
            yield part
        begin += size


def pooled(x):
    return torch.stack([part.mean(0) for part in chunks(x, 4)]).sum(0)


def make():
    return pooled, [(torch.randn(12, 3),) for _ in range(2)]


# %% lru_cached_mask
import functools

import torch
from torch import nn


@functools.lru_cache
def causal(size):
    return torch.full((size, size), float("-inf")).triu(1)


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.qk = nn.Linear(8, 16)

    def forward(self, x):
        q, k = self.qk(x).chunk(2, -1)
        scores = q @ k.mT + causal(x.shape[1])
        return scores.softmax(-1) @ x


def make():
    return Attend(), [(torch.randn(1, n, 8),) for n in (4, 4, 6, 8)]


# %% disabled_module
import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.middle = torch.compiler.disable(nn.Linear(8, 8))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.middle(self.stem(x)).relu())


def make():
    return Tower(), [(torch.randn(3, 4),) for _ in range(2)]


# %% append_under_checkpoint
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Saver(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 6)
        self.kept = []

    def block(self, x):
        y = torch.tanh(self.lin(x))
        self.kept.append(y.shape)
        return y

    def forward(self, x):
        self.kept.clear()
        return checkpoint(self.block, x, use_reentrant=False).sum(-1)


def make():
    return Saver(), [(torch.randn(2, 6),) for _ in range(2)]


# %% cond_over_modules
import torch
from torch import nn


class Switch(nn.Module):
    def __init__(self):
        super().__init__()
        self.low = nn.Linear(4, 4)
        self.high = nn.Linear(4, 4)

    def forward(self, x):
        return torch.cond(x.mean() > 0, self.high, self.low, (x,)) + 1


def make():
    return Switch(), [(torch.randn(2, 4),) for _ in range(3)]


# %% activation_by_name
import torch
from torch import nn

names = ["relu", "tanh", "sigmoid", "gelu", "silu", "elu", "selu", "softplus", "mish"]


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, activation):
        return getattr(nn.functional, activation, torch.tanh)(self.lin(x))


def make():
    return Named(), [(torch.randn(2, 4), name) for name in names]


# %% marked_but_constant
import torch
from torch import nn


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.randn(10, 4))

    def forward(self, x):
        return (x + self.position).relu()


def make():
    x = torch.randn(2, 10, 4)
    torch._dynamo.mark_dynamic(x, 1)
    return Fixed(), [(x,)]


# %% try_around_solver
import torch
from torch import nn


class Whiten(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        covariance = x.mT @ x / len(x)
        try:
            if torch.linalg.det(covariance) == 0:
                raise ValueError("singular")
            factor = torch.linalg.cholesky(covariance)
        except ValueError:
            factor = torch.eye(3)
        return torch.linalg.solve_triangular(factor, x.mT, upper=False).mT * self.scale


def make():
    return Whiten(), [(torch.randn(10, 3),) for _ in range(2)]


# %% python_random_depth
import random

import torch
from torch import nn


class StochasticDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            if random.random() < 0.3:
                continue
            x = x + layer(x)
        return x


def make():
    return StochasticDepth(), [(torch.randn(2, 4),) for _ in range(6)]


# %% numpy_noise
import numpy as np
import torch
from torch import nn


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        noise = torch.from_numpy(self.rng.normal(size=tuple(x.shape)).astype("float32"))
        return self.lin(x + 0.1 * noise)


def make():
    return Noisy(), [(torch.randn(2, 4),) for _ in range(3)]


# %% nonzero_tokens
import torch
from torch import nn


class KeepTokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 6)

    def forward(self, ids):
        kept = (ids != 0).nonzero().squeeze(1)
        return self.embed(ids[kept]).mean(0)


def make():
    return KeepTokens(), [(torch.randint(0, 4, (10,)),) for _ in range(4)]


# %% masked_select_loss
import torch


def masked_loss(logits, target, mask):
    errors = (logits - target).square()
    return torch.masked_select(errors, mask).mean() + errors[mask].max()


def make():
    def call():
        return torch.randn(6, 4), torch.randn(6, 4), torch.rand(6, 4) > 0.4

    return masked_loss, [call() for _ in range(3)]


# %% unique_entities
import torch
from torch import nn


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x, owner):
        names, place = torch.unique(owner, return_inverse=True)
        sums = x.new_zeros(len(names), x.shape[1]).index_add(0, place, self.lin(x))
        return sums.relu()


def make():
    return Pool(), [(torch.randn(8, 3), torch.randint(0, 4, (8,))) for _ in range(3)]


# %% list_sliced_by_tensor
import torch
from torch import nn


class Early(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])

    def forward(self, x, depth):
        for layer in list(self.layers)[:depth]:
            x = torch.relu(layer(x))
        return x


def make():
    return Early(), [(torch.randn(2, 4), torch.tensor(n)) for n in (2, 3, 2)]


# %% list_indexed_by_tensor
import torch
from torch import nn


class Route(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.router = nn.Linear(4, 3)

    def forward(self, x):
        best = self.router(x.mean(0)).argmax()
        return self.experts[best](x)


def make():
    return Route(), [(torch.randn(2, 4),) for _ in range(4)]


# %% sparse_adjacency
import torch
from torch import nn


class GraphLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, edges):
        ones = torch.ones(edges.shape[1])
        adjacency = torch.sparse_coo_tensor(edges, ones, (len(x), len(x)))
        return torch.sparse.mm(adjacency, self.lin(x)).relu()


def make():
    return GraphLayer(), [
        (torch.randn(6, 4), torch.randint(0, 6, (2, 9))) for _ in range(2)
    ]


# %% nested_batch
import torch
from torch import nn


class Ragged(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, parts):
        ragged = torch.nested.nested_tensor(parts)
        return torch.nested.to_padded_tensor(self.lin(ragged), 0.0).sum(1)


def make():
    def parts(*sizes):
        return ([torch.randn(n, 4) for n in sizes],)

    return Ragged().requires_grad_(False), [parts(2, 3), parts(1, 4)]


# %% lstm_tagger
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, ids):
        states, _ = self.lstm(self.embed(ids))
        return self.head(states)


def make():
    return Tagger(), [(torch.randint(0, 30, (2, n)),) for n in (5, 5, 7)]


# %% deepcopy_of_state
import copy

import torch
from torch import nn


class Rollout(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x):
        start = copy.deepcopy(x)
        for _ in range(2):
            x = torch.tanh(self.step(x))
        return x - start


def make():
    return Rollout(), [(torch.randn(2, 4),) for _ in range(2)]


# %% step_with_backward
import torch
from torch import nn

net = nn.Linear(4, 1)


def train_step(x, y):
    net.weight.grad = net.bias.grad = None
    loss = ((net(x) - y) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad
    return loss.detach()


def make():
    return train_step, [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(3)]


# %% gradient_penalty
import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, real, fake):
        mixed = (0.5 * (real + fake)).requires_grad_(True)
        score = self.net(mixed).sum()
        (slope,) = torch.autograd.grad(score, mixed, create_graph=True)
        return ((slope.norm(dim=1) - 1) ** 2).mean()


def make():
    return Critic(), [(torch.randn(3, 4), torch.randn(3, 4)) for _ in range(2)]


# %% hook_on_hidden
import torch
from torch import nn


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.norms = []

    def forward(self, x):
        hidden = self.lin(x)
        hidden.register_hook(lambda g: self.norms.append(g.norm()))
        return torch.relu(hidden).sum()


def make():
    return Hooked(), [(torch.randn(2, 4),) for _ in range(2)]


# %% asks_for_inference_mode
import torch
from torch import nn


class Clone(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        if torch.is_inference_mode_enabled():
            x = x.clone()
        return self.lin(x).relu()


def make():
    return Clone(), [(torch.randn(2, 4),) for _ in range(2)]


# %% object_as_key
import torch
from torch import nn


class Domain:
    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        return self.name == other.name


class PerDomain(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(4, 2) for _ in range(2)])
        self.number = {Domain("text"): 0, Domain("code"): 1}

    def forward(self, x, domain):
        return self.heads[self.number[domain]](x)


def make():
    return PerDomain(), [
        (torch.randn(2, 4), Domain(name)) for name in ("text", "code", "text")
    ]


# %% swaps_data
import torch
from torch import nn


class Swap(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.zeros(4, 4))

    def forward(self, x):
        y = x @ self.memory + x
        self.memory.data = 0.9 * self.memory + 0.1 * (x.mT @ x)
        return y


def make():
    return Swap(), [(torch.randn(3, 4),) for _ in range(3)]


# %% attribute_on_tensor
import torch
from torch import nn


class Tagging(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        y = self.lin(x)
        y.domain = "hidden"
        if y.domain == "hidden":
            y = y.relu()
        return y


def make():
    return Tagging(), [(torch.randn(2, 4),) for _ in range(2)]


# %% pointer_as_cache_key
import torch
from torch import nn


class Folded(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.folded = {}

    def forward(self, x):
        key = self.weight.data_ptr()
        if key not in self.folded:
            self.folded[key] = self.weight / self.weight.norm()
        return x @ self.folded[key]


def make():
    return Folded().requires_grad_(False), [(torch.randn(2, 4),) for _ in range(3)]


# %% tolist_lengths
import torch


def split_batch(x, lengths):
    parts = torch.split(x, lengths.tolist())
    return torch.stack([part.mean(0) for part in parts])


def make():
    lengths = [(2, 3, 5), (4, 4, 2), (1, 8, 1)]
    return split_batch, [(torch.randn(10, 3), torch.tensor(n)) for n in lengths]


# %% numpy_percentile
import numpy as np
import torch
from torch import nn


class Robust(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 6)

    def forward(self, x):
        y = self.lin(x)
        low, high = np.percentile(y.detach().numpy(), [5, 95])
        return y.clamp(float(low), float(high))


def make():
    return Robust(), [(torch.randn(4, 6),) for _ in range(3)]


# %% writes_a_file
import json
import os
import tempfile

import torch
from torch import nn


class Dump(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.path = os.path.join(tempfile.mkdtemp(), "shapes.json")

    def forward(self, x):
        y = self.lin(x)
        with open(self.path, "w") as file:
            json.dump(list(y.shape), file)
        return y.tanh()


def make():
    return Dump(), [(torch.randn(2, 4),) for _ in range(2)]


# %% reads_environment
import os

import torch
from torch import nn


class Flagged(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        y = self.lin(x)
        if os.environ.get("USE_FAST_GELU", "1") == "1":
            return nn.functional.gelu(y, approximate="tanh")
        return nn.functional.gelu(y)


def make():
    return Flagged(), [(torch.randn(2, 4),) for _ in range(2)]


# %% subclass_with_units
import torch


class Metres(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def distance(a, b):
    return (a - b).square().sum(-1).sqrt().mean()


def make():
    return distance, [
        (torch.randn(4, 3).as_subclass(Metres), torch.randn(4, 3).as_subclass(Metres))
        for _ in range(2)
    ]


# %% caller_name_by_frame
import inspect

import torch
from torch import nn


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.callers = set()

    def forward(self, x):
        self.callers.add(inspect.currentframe().f_back.f_code.co_name)
        return self.lin(x).relu()


def make():
    return Named(), [(torch.randn(2, 4),) for _ in range(2)]


# %% lock_around_update
import threading

import torch
from torch import nn


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.lin = nn.Linear(4, 4)
        self.total = torch.zeros(4)

    def forward(self, x):
        y = self.lin(x)
        with self.lock:
            self.total = self.total + y.detach().sum(0)
        return y - self.total


def make():
    return Shared(), [(torch.randn(2, 4),) for _ in range(3)]


# %% regular_expression_of_names
import re

import torch
from torch import nn


class Selected(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({f"block_{i}": nn.Linear(4, 4) for i in range(4)})

    def forward(self, x, pattern):
        for name, layer in self.layers.items():
            if re.fullmatch(pattern, name):
                x = layer(x).relu()
        return x


def make():
    return Selected(), [(torch.randn(2, 4), r"block_[01]") for _ in range(2)]


# %% cache_by_identity
import torch
from torch import nn


class ByIdentity(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.known = {}

    def forward(self, x, context):
        key = id(context)
        if key not in self.known:
            self.known[key] = self.lin(context)
        return x * self.known[key]


def make():
    context = torch.randn(4)
    return ByIdentity(), [(torch.randn(2, 4), context) for _ in range(3)]


# %% scripted_activation
import torch
from torch import nn


@torch.jit.script
def bias_gelu(bias, y):
    x = bias + y
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4, bias=False)
        self.bias = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return bias_gelu(self.bias, self.lin(x))


def make():
    return Fused(), [(torch.randn(2, 4),) for _ in range(2)]


# %% generator_argument
import torch
from torch import nn


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, generator):
        noise = torch.randn(x.shape, generator=generator)
        return self.lin(x + noise)


def make():
    generator = torch.Generator().manual_seed(0)
    return Sampler(), [(torch.randn(2, 4), generator) for _ in range(2)]


# %% optimizer_inside
import torch
from torch import nn

net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)


def step(x, y):
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        return loss

    return optimizer.step(closure)


def make():
    return step, [(torch.randn(6, 4), torch.randn(6, 1)) for _ in range(3)]


# %% dirty_function
import torch
from torch import nn


class AddInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        return x.add_(y)

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return AddInPlace.apply(self.lin(x), x).relu()


def make():
    return Residual(), [(torch.randn(2, 4),) for _ in range(2)]


# %% global_step_counter
import torch
from torch import nn

STEP = 0


class Warm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        global STEP
        STEP += 1
        return self.lin(x) * min(1.0, STEP / 10)


def make():
    return Warm(), [(torch.randn(2, 4),) for _ in range(5)]


# %% seeds_inside
import torch
from torch import nn


class Repeatable(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, seed):
        torch.manual_seed(seed)
        mask = torch.rand(x.shape) > 0.5
        return self.lin(x) * mask


def make():
    return Repeatable(), [(torch.randn(2, 4), seed) for seed in (1, 2, 3)]


# %% formats_a_tensor
import torch
from torch import nn


class Described(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.history = []

    def forward(self, x):
        y = self.lin(x)
        self.history.append(f"mean {y.mean():.3f}, std {y.std():.3f}")
        return y.relu()


def make():
    return Described(), [(torch.randn(2, 4),) for _ in range(3)]


# %% catches_warnings
import warnings

import torch
from torch import nn


class Quiet(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = self.lin(x)
        return y.softmax(-1)


def make():
    return Quiet(), [(torch.randn(2, 4),) for _ in range(2)]


# %% bincount_of_labels
import torch


def class_weights(logits, labels):
    counts = torch.bincount(labels)
    weights = 1.0 / counts.clamp(min=1)
    return (logits.logsumexp(-1) * weights[labels]).mean()


def make():
    return class_weights, [
        (torch.randn(8, 4), torch.randint(0, 4, (8,))) for _ in range(3)
    ]


# %% math_of_parameter
import math

import torch
from torch import nn


class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, logits):
        scale = math.exp(self.log_scale)
        return (logits * scale).softmax(-1)


def make():
    return Temperature(), [(torch.randn(2, 4),) for _ in range(2)]


# %% membership_of_tensor
import torch
from torch import nn


class Stop(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 10)
        self.stops = [2, 5]

    def forward(self, h):
        token = self.head(h).argmax(-1)
        done = token[0] in self.stops
        return token, done


def make():
    return Stop(), [(torch.randn(1, 6),) for _ in range(4)]


# %% default_dtype_inside
import torch
from torch import nn


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        torch.set_default_dtype(torch.float64)
        table = torch.linspace(0, 1, 4)
        torch.set_default_dtype(torch.float32)
        return self.lin(x) * table.float()


def make():
    return Wide(), [(torch.randn(2, 4),) for _ in range(2)]


# %% repeats_by_tensor
import torch
from torch import nn


class Upsample(nn.Module):
    """Repeats each phoneme as long as its predicted duration."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, phonemes, durations):
        return self.lin(torch.repeat_interleave(phonemes, durations, dim=0))


def make():
    durations = [(1, 2, 3), (2, 2, 2), (4, 1, 2)]
    return Upsample(), [(torch.randn(3, 4), torch.tensor(n)) for n in durations]


# %% vmapped_gradients
import torch
from torch import nn


def loss(weight, x, y):
    return ((x @ weight - y) ** 2).mean()


def per_sample(weight, xs, ys):
    return torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weight, xs, ys).norm(
        dim=-1
    )


def make():
    weight = torch.randn(4)
    return per_sample, [(weight, torch.randn(6, 4), torch.randn(6)) for _ in range(2)]


# %% evaluates_source
import torch
from torch import nn


class Symbolic(nn.Module):
    """Applies a formula that a search has found."""

    def __init__(self, formula):
        super().__init__()
        self.formula = formula
        self.a = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return eval(self.formula, {"torch": torch}, {"x": x, "a": self.a})


def make():
    return Symbolic("torch.sin(a * x) + x ** 2"), [(torch.randn(3),) for _ in range(2)]


# %% compares_object_types
import torch
from torch import nn


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Linear(8, 4)
        self.text = nn.Embedding(10, 4)

    def forward(self, inputs):
        out = []
        for each in inputs:
            if type(each) is str:
                ids = torch.tensor([ord(c) % 10 for c in each])
                out.append(self.text(ids).mean(0))
            else:
                out.append(self.image(each))
        return torch.stack(out)


def make():
    words = ["cat", "dogs", "a bird", "no"]
    return Mixed(), [([torch.randn(8), word],) for word in words]
