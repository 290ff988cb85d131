"""Replays over changing shapes and weights: is an answer ever stale?

    python -m benchmarks.replays [inference|training] [--replays 10000] [--blind]

One small model, graphed for inference and for training, is called with random shapes
while its weights are changed in place, loaded, moved, replaced and converted, and it is
flipped between train and eval. Answers and gradients are compared at random with those
of the model itself in eager, right after the replay; some answers are kept, to see
whether later replays reach them. `--blind` calls a copy of the model that sees none of
the changes, which has to be found out. Exit code 1 when an answer is stale.
"""

from __future__ import annotations

import copy
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

import torchproof
from benchmarks.survey import Options, Row, Survey
from torchproof.targets.calls import loss

WIDTH = 64
SHAPES = ((1, 16), (3, 16), (8, 16), (8, 40), (2, 7), (16, 24))
COMPARED, KEPT = 0.2, 0.05  # of the calls
LATER = 40  # calls after which what was kept is looked at
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float64: 1e-9}
OTHER_TYPE = {"cuda": torch.bfloat16, "cpu": torch.float64}
MOST_CALLS = 1.5  # for each replay that is asked for


class Model(nn.Module):
    """Rows (batch, length, width); what they give depends on train and eval."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        # A bias before a norm has no gradient but rounding, which cannot be compared.
        self.first = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.norm = nn.BatchNorm1d(2 * WIDTH)
        self.second = nn.Linear(2 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("shift", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x).transpose(1, 2)).relu()
        output: Tensor = self.second(hidden.transpose(1, 2)) * self.scale + self.shift
        return output


# -- what happens between calls --------------------------------------------------------


def change_weights(model: Model) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)


def change_buffer(model: Model) -> None:
    model.shift.normal_()


def load(model: Model) -> None:
    state = model.state_dict()
    changed = {k: v + 0.1 if v.is_floating_point() else v for k, v in state.items()}
    model.load_state_dict(changed)


def flip(model: Model) -> None:
    model.train(not model.training)


def replace_parameter(model: Model) -> None:
    model.scale = nn.Parameter(torch.randn_like(model.scale))


def replace_module(model: Model) -> None:
    weight = model.second.weight
    model.second = nn.Linear(2 * WIDTH, WIDTH).to(weight.device, weight.dtype)


def move_weights(model: Model) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.1


def convert(model: Model) -> None:
    other = OTHER_TYPE[model.scale.device.type]
    model.to(torch.float32 if model.scale.dtype is other else other)


# Each happens once in so many calls.
EVENTS: dict[Callable[[Model], None], int] = {
    change_weights: 8,
    flip: 50,
    change_buffer: 90,
    load: 300,
    replace_parameter: 1500,
    move_weights: 1800,
    replace_module: 2200,
    convert: 2500,
}


# -- calls -----------------------------------------------------------------------------


class Drive:
    """Calls of one graphed step, and what was seen of them."""

    def __init__(self, device: str, *, train: bool, blind: bool, seed: int) -> None:
        torch.manual_seed(seed)
        self.draw, self.train = random.Random(seed), train
        self.model = Model().to(device)
        seen = copy.deepcopy(self.model) if blind else self.model
        self.graphed = torchproof.graph(seen, train=train)
        # A copy that is not converted along could not be called at all.
        self._may_happen = {
            e: p for e, p in EVENTS.items() if not blind or e != convert
        }
        self.events: Counter[str] = Counter()
        self.stale: list[str] = []
        self.calls = self.compared = self.kept = 0
        self.largest_error = 0.0
        self._waiting: deque[tuple[int, Tensor, Tensor]] = deque()

    def call(self) -> None:
        for event, period in self._may_happen.items():
            if self.draw.random() < 1 / period:
                event(self.model)
                self.events[event.__name__] += 1
        batch, length = self.draw.choice(SHAPES)
        weight = self.model.scale
        x = torch.randn(batch, length, WIDTH, device=weight.device, dtype=weight.dtype)
        self.model.zero_grad(set_to_none=True)
        answer: Tensor = self.graphed(x).detach()
        self.calls += 1
        if self.draw.random() < COMPARED:
            self._compare(x, answer)
        if self.draw.random() < KEPT:
            self._waiting.append((self.calls, answer, answer.clone()))
        while self._waiting and self._waiting[0][0] < self.calls - LATER:
            self._look_again(*self._waiting.popleft())

    def _compare(self, x: Tensor, answer: Tensor) -> None:
        self.compared += 1
        gradients = self._gradients()
        expected = self._eager(x)
        self._judge("answer", answer, expected)
        for name, gradient in self._gradients().items() if self.train else ():
            self._judge(f"gradient of {name}", gradients.get(name), gradient)

    def _eager(self, x: Tensor) -> Tensor:
        self.model.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(self.train):
            output: Tensor = self.model(x)
        if self.train:
            loss(output).backward()
        return output.detach()

    def _gradients(self) -> dict[str, Tensor]:
        named = self.model.named_parameters()
        return {n: p.grad.clone() for n, p in named if p.grad is not None}

    def _judge(self, what: str, answer: Tensor | None, expected: Tensor) -> None:
        if answer is None or answer.dtype != expected.dtype:
            self.stale.append(
                f"call {self.calls}: {what} is missing or of another type"
            )
            return
        size = expected.float().abs().max().clamp(min=1e-6)
        error = float((answer.float() - expected.float()).abs().max() / size)
        if not error <= TOLERANCE[expected.dtype]:
            self.stale.append(f"call {self.calls}: {what} is off by {error:.2g}")
        else:
            self.largest_error = max(self.largest_error, error)

    def _look_again(self, call: int, answer: Tensor, copied: Tensor) -> None:
        self.kept += 1
        if not torch.equal(answer, copied):
            self.stale.append(f"call {call}: its answer changed later")

    def facts(self) -> Row:
        status = self.graphed.status()
        return {
            "calls": self.calls,
            "replays": status.replays,
            "plain_calls": status.plain_calls,
            "recordings": status.recordings,
            "compared": self.compared,
            "kept": self.kept,
            "stale": len(self.stale),
            "examples": self.stale[:5],
            "largest_error": self.largest_error,
            "events": dict(self.events),
            "pool_bytes": status.pool_bytes,
            "falls_back": list(self.graphed.falls_back),
        }


def measure(name: str, options: Options) -> Row:
    """Three in ten replays are training steps."""
    train = name == "training"
    replays = options.replays or (1_000 if options.quick else 10_000)
    wanted = round(replays * (0.3 if train else 0.7))
    device = options.device
    drive = Drive(device, train=train, blind=options.blind, seed=int(train))
    while drive.calls < MOST_CALLS * wanted:
        drive.call()
        if drive.calls % 100 == 0 and drive.graphed.status().replays >= wanted:
            break
    return drive.facts()


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        if row["stale"]:
            yield f"{name}: {row['stale']} answers are stale: {row['examples']}"


SURVEY = Survey(
    "replays",
    lambda options: ("inference", "training"),
    measure,
    failures,
    devices=("cuda", "cpu"),
    flags={
        "--replays": {"type": int, "help": "of both rows (10000)"},
        "--blind": {"action": "store_true", "help": "must find stale answers"},
    },
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
