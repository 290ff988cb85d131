"""A training step with two graphs, forward with loss and update, without a host sync.

The learning rate and the metrics are tensors on the device. The compiled update writes
them, and only `metrics()` reads them back. It trains with and without `--train`.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchproof.targets.workloads import gpt, synthetic


@dataclass(frozen=True)
class Size:
    """The dimensions of the decoder and of its training batches."""

    decoder: gpt.Size
    batch: int
    last_batch: int
    sequence: int


SIZES = {
    "tiny": Size(gpt.Size(1, 32, 2, 64), batch=4, last_batch=1, sequence=16),
    "base": Size(gpt.Size(8, 512, 8, 8192), batch=16, last_batch=4, sequence=512),
}

PEAK_RATE, FLOOR = 3e-3, 0.1
WARM_UP_STEPS, DECAY_STEPS = 4, 32
MAX_NORM = 1.0
WINDOW = 10  # the logged loss is the mean over this many steps


def sized(name: str, batch: int | None, sequence: int | None) -> Size:
    """The size of this name, with `batch` and `sequence` replaced if they are set."""
    size = SIZES[name]
    return replace(
        size,
        batch=batch or size.batch,
        last_batch=batch or size.last_batch,
        sequence=sequence or size.sequence,
    )


def mixed_precision_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the next tokens: bf16 matmuls, fp32 weights and loss."""
    with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
        logits = model(inputs)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def learning_rate(steps: Tensor) -> Tensor:
    """Linear warm-up, then cosine decay to the floor, computed on the device."""
    warmth = ((steps + 1) / WARM_UP_STEPS).clamp(max=1.0)
    progress = (steps / DECAY_STEPS).clamp(max=1.0)
    height = 0.5 + 0.5 * torch.cos(math.pi * progress)
    return PEAK_RATE * warmth * (FLOOR + (1 - FLOOR) * height)


class TrainStep:
    """Each call trains once on (inputs, targets) and returns the detached loss."""

    compiles_itself = True
    trains_itself = True

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters = list(model.parameters())
        device = self.parameters[0].device
        with device:
            self.steps = torch.zeros((), dtype=torch.long)
            self.learning_rate = torch.zeros(())
            self.gradient_norm = torch.zeros(())
            self.recent_losses = torch.zeros(WINDOW)
        # `capturable` keeps the step count on the GPU; otherwise AdamW reads it back.
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.parameters, capturable=on_gpu)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        self.loss = torch.compile(mixed_precision_loss)
        self.update = torch.compile(self._update)

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.model, inputs, targets)
        loss.backward()
        loss = loss.detach()
        self.update(loss)
        return loss

    @torch.no_grad()
    def _update(self, loss: Tensor) -> None:
        """Clips gradients, steps with the scheduled rate, and stores the metrics."""
        norm = nn.utils.clip_grad_norm_(self.parameters, MAX_NORM)
        self.learning_rate.copy_(learning_rate(self.steps))
        # Unwrap it: the decorator of `step` causes a graph break to disable gradients.
        inspect.unwrap(torch.optim.AdamW.step)(self.optimizer)
        self.gradient_norm.copy_(norm)
        slot = (self.steps % WINDOW).view(1)
        self.recent_losses.index_copy_(0, slot, loss.view(1).float())
        self.steps.add_(1)

    def metrics(self) -> dict[str, float]:
        """The metrics to log. Only this method makes the host wait for the device."""
        state = torch.stack((self.steps, self.learning_rate, self.gradient_norm))
        steps, rate, norm, *losses = torch.cat((state, self.recent_losses)).tolist()
        losses = losses[: int(steps)]
        return {
            "loss": sum(losses) / len(losses) if losses else math.nan,
            "gradient_norm": norm,
            "learning_rate": rate,
        }


def model_and_epoch(
    size: Size, device: str
) -> tuple[gpt.GPT, list[tuple[Tensor, Tensor]]]:
    """A model and twelve batches (inputs, targets); the last batch is smaller."""
    epoch, vocabulary = [], size.decoder.vocabulary
    for batch in [size.batch] * 11 + [size.last_batch]:
        # Runs of consecutive ids, which the model can learn within a few steps.
        first = synthetic.token_ids(vocabulary, batch, 1, device)
        tokens = first + torch.arange(size.sequence + 1, device=device)
        tokens = tokens % vocabulary
        # Copy: a slice of a batch of 1 keeps its odd strides, and Dynamo guards them.
        dense = torch.contiguous_format
        inputs = tokens[:, :-1].clone(memory_format=dense)
        epoch.append((inputs, tokens[:, 1:].clone(memory_format=dense)))
    with torch.device(device):
        return gpt.GPT(size.decoder).train(), epoch


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
    model, epoch = model_and_epoch(sized(size, batch, sequence), device)
    for inputs, targets in epoch:
        synthetic.any_batch(inputs, targets)
    return TrainStep(model), epoch
