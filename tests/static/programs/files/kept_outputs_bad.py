"""Outputs of CUDA graphs are kept over later calls."""

import torch

step = torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")


@torch.no_grad()
def listed(batches):
    outs = []
    for batch in batches:
        outs.append(step(batch))  # <- CG301
    return torch.stack(outs)


def fed_back(state):
    with torch.inference_mode():
        for _ in range(5):
            state = step(state)  # <- CG301
    return state


def losses(net, batches):
    fast = torch.compile(lambda x: net(x).mean(), mode="reduce-overhead")
    kept = []
    for batch in batches:
        loss = fast(batch)
        loss.backward()
        kept.append(loss.detach())  # <- CG301
    return torch.stack(kept).mean()


class Policy:
    def __init__(self, net):
        self.net = torch.compile(net, mode="reduce-overhead")
        self.scores = None

    @torch.no_grad()
    def act(self, x):
        self.scores = self.net(x)  # <- CG301
        return self.scores.argmax()


@torch.no_grad()
def gathered(batches):
    return [step(batch) for batch in batches]  # <- CG301
