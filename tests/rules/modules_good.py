import math
import zlib
from dataclasses import dataclass
import torch
from torch import Tensor, nn


# Modules in which all is traced, although each is like one that is not.
DEBUG = False


class Counted(nn.Module):
    """A count in a buffer, and a count outside of what is compiled."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.epochs = 0
        self.size = 0
        self.verbose = False
        print("made", end="")

    def next_epoch(self):
        self.epochs += 1

    def forward(self, x):
        if DEBUG or self.verbose:
            print("x", x)
        self.calls += 1
        self.size = 4
        count = 0
        count += 1
        return self.fc(x) * count


class Probe(nn.Module):
    """A list that each call starts anew; a loop over layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.cell = nn.GRUCell(4, 4)
        self.outputs = []

    def forward(self, x):
        self.outputs = []
        kept = []
        for layer in self.layers:
            x = layer(x)
            kept.append(x)
            self.outputs.append(1)
        for index in range(len(self.layers)):
            x = self.layers[index](x)
        return torch.stack(kept).cumsum(1).sum(0) + self.cell(x)


class Weighted(nn.Module):
    """A parameter is made once, an id looked up once; reading .data is traced."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.tokenizer = Tokenizer()
        self.image_token = self.tokenizer.encode("<image>")[0]

    def forward(self, x):
        words = {"a": 1, "b": 2}
        scale = sum(words.values()) + math.gcd(4, 6) + len("a b".split())
        return x.data * scale + self.weight + self.image_token + x.requires_grad


class Tokenizer:
    def encode(self, text):
        return [zlib.crc32(text.encode()) % 3]


class Encoder(nn.Module):
    """Images come as one tensor; a pair is a pair."""

    def forward(self, images: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
        first, second = pair
        return images.sum(0) + first + second + torch.stack(pair).sum(0)


def is_tracing(tensor):
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


class Checked(nn.Module):
    """What a library's own `is_tracing` leaves out while compiling is not compiled."""

    def forward(self, x):
        self.warn(x)
        if torch.jit.is_tracing():
            x = x * x.sum().item()
        return x * 2

    def warn(self, x):
        if is_tracing(x):
            return
        if x.sum() > 0:
            print("positive")


class Narrowed(nn.Module):
    """Where a test says that a value is no tensor, asking for its truth is no break."""

    mode = "size"

    def forward(self, x, scale, shift=None):
        if isinstance(scale, Tensor):
            scale = scale.to(x.dtype)
        elif scale > 1:
            x = x + 1
        limit = shift.view(-1) if torch.is_tensor(shift) else float(shift or 0)
        if not isinstance(scale, (Tensor, list)) and scale > 2:
            x = x - limit
        return self.sized(x)

    def sized(self, x):
        count = x.sum()
        match self.mode:
            case "size":
                count = x.shape[0]
            case str() as other:
                count = len(other)
            case _:
                return x
        if count > 1:
            x = x * count
        return x


@dataclass
class Settings:
    dim: int = 2
    max: float = 2.0
    device: str = "cpu"


class Configured(nn.Module):
    """An object of settings has words that tensors have too."""

    def forward(self, x, settings):
        if settings and settings.dim > 1:
            x = x * settings.max
        x = x.to(settings.device) if settings else x
        if torch.is_autocast_cpu_enabled() or torch.is_complex(x):
            x = x + 1
        if torch.promote_types(x.dtype, torch.half) == x.dtype and not x.is_complex():
            x = x - 1
        return x


class Every(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(Counted(), Probe(), Weighted(), Checked())
        self.encoder, self.narrowed = Encoder(), Narrowed()
        self.configured = Configured()

    def forward(self, x, pair, scale, settings):
        x = self.configured(self.narrowed(x, scale), settings)
        return self.encoder(self.parts(x), pair)


def good():
    print("ready")
    arguments = torch.rand(2, 4), (torch.rand(4), torch.rand(4)), 3.0, Settings()
    return Every(), [arguments] * 4
