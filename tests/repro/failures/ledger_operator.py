"""An operator that writes into its argument and does not declare it: wrong sums."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class LedgerShape:
    """How large the ledger is."""

    accounts: int = 16
    rounds: int = 2


@torch.library.custom_op("ledger::settle", mutates_args=())
def settle(balances: torch.Tensor, payments: torch.Tensor) -> torch.Tensor:
    balances.add_(payments)
    return payments.clone()


@settle.register_fake
def _(balances: torch.Tensor, payments: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(payments)


class LedgerModel(nn.Module):
    def __init__(self, shape: LedgerShape) -> None:
        super().__init__()
        self.shape = shape
        self.fees = nn.Linear(shape.accounts, shape.accounts)

    def forward(self, payments: torch.Tensor) -> torch.Tensor:
        balances = torch.zeros_like(payments)
        for _ in range(self.shape.rounds):
            payments = settle(balances, self.fees(payments))
        return balances + payments


def make():
    model = LedgerModel(LedgerShape()).eval().requires_grad_(False)
    return model, [(torch.randn(3, 16),)]
