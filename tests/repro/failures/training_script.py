"""A training script that watches its loss in the middle of what it compiles."""

import torch
from torch import nn


class BeehiveNet(nn.Module):
    """Whether a hive is about to swarm, from its hum."""

    def __init__(self, bands: int = 12, width: int = 24) -> None:
        super().__init__()
        self.bands = nn.Linear(bands, width)
        self.hidden = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.swarm = nn.Linear(width, 1)

    def forward(self, hum: torch.Tensor) -> torch.Tensor:
        return self.swarm(self.hidden(torch.tanh(self.bands(hum)))).squeeze(-1)


class LossWatch:
    """Remembers the smallest loss; stops nothing yet."""

    def __init__(self) -> None:
        self.smallest = float("inf")

    def see(self, loss: torch.Tensor) -> None:
        self.smallest = min(self.smallest, loss.item())


def hums(batches: int, size: int = 16):
    for _ in range(batches):
        hum = torch.rand(size, 12)
        yield hum, (hum.mean(dim=1) > 0.5).float()


torch.manual_seed(3)
network = BeehiveNet()
watch = LossWatch()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
criterion = nn.BCEWithLogitsLoss()


@torch.compile
def judged(hum, swarms):
    loss = criterion(network(hum), swarms)
    watch.see(loss.detach())
    return loss * 1.0


for hum, swarms in hums(4):
    optimizer.zero_grad()
    loss = judged(hum, swarms)
    loss.backward()
    optimizer.step()

print("smallest loss", watch.smallest)
