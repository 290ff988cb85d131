"""A gradient penalty over a compiled critic: no gradient of a gradient is possible."""

import torch
from torch import nn


class FabricCritic(nn.Module):
    """Scores patches of fabric, real ones and made ones."""

    def __init__(self, threads: int, width: int) -> None:
        super().__init__()
        self.weave = nn.Linear(threads, width)
        self.judge = nn.Sequential(
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, 1),
        )

    def forward(self, patch: torch.Tensor) -> torch.Tensor:
        return self.judge(torch.tanh(self.weave(patch))).squeeze(-1)


class PenaltyLoss(nn.Module):
    """The loss of a critic whose slope is to stay near one."""

    def __init__(self, critic: nn.Module, strength: float) -> None:
        super().__init__()
        self.strength = strength
        self.critic = critic
        self.fast_critic = torch.compile(critic, backend="aot_eager")

    def penalty(self, real: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        between = (0.5 * (real + made)).detach().requires_grad_()
        score = self.fast_critic(between).sum()
        (slope,) = torch.autograd.grad(score, between, create_graph=True)
        return (slope.norm(dim=-1) - 1).square().mean()

    def forward(self, real: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        wanted = self.critic(made).mean() - self.critic(real).mean()
        return wanted + self.strength * self.penalty(real, made)


def make():
    loss = PenaltyLoss(FabricCritic(threads=12, width=24), strength=10.0)
    return loss, [(torch.randn(6, 12), torch.randn(6, 12)) for _ in range(2)]
