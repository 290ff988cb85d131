"""The training step of `trainstep` before the fixes, as it is often written.

It compiles the whole step, including backward. The learning rate is a Python float that
a scheduler changes. Every step reads the loss and the gradient norm with `.item()` for
a log line, and appends the loss to a list. The last batch of the epoch is smaller. This
works in eager mode; `torch.compile` splits it into many small graphs.
"""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor, nn

from torchproof.targets.workloads import trainstep
from torchproof.targets.workloads.trainstep import DECAY_STEPS, FLOOR, PEAK_RATE

logger = logging.getLogger(__name__)


def share_of_peak(step: int) -> float:
    """Linear warm-up, then cosine decay to the floor."""
    warmth = min(1.0, (step + 1) / trainstep.WARM_UP_STEPS)
    height = 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / DECAY_STEPS))
    return warmth * (FLOOR + (1 - FLOOR) * height)


class TrainStep:
    """Each call trains once on (inputs, targets) and returns the detached loss."""

    compiles_itself = True
    trains_itself = True

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, share_of_peak
        )
        self.losses: list[float] = []
        self.train_step = torch.compile(self._train_step)

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.train_step(inputs, targets)

    def _train_step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        loss = trainstep.mixed_precision_loss(self.model, inputs, targets)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), trainstep.MAX_NORM)
        self.optimizer.step()
        self.scheduler.step()

        loss_value = loss.item()
        self.losses.append(loss_value)
        recent = self.losses[-trainstep.WINDOW :]
        average = sum(recent) / len(recent)
        gradient_norm = norm.item()
        rate = self.scheduler.get_last_lr()[0]
        logger.info("loss %.4f, norm %.3f, rate %.2e", average, gradient_norm, rate)
        return loss.detach()


def make(
    size: str = "tiny",
    batch: int | None = None,
    sequence: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
) -> tuple[TrainStep, list[tuple[Tensor, Tensor]]]:
    """Returns the step and one epoch of batches; it trains even without `train`."""
    torch.manual_seed(0)
    spec = trainstep.sized(size, batch, sequence)
    model, epoch = trainstep.model_and_epoch(spec, device)
    return TrainStep(model), epoch
