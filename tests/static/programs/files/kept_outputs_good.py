"""Copies are kept, or values that are no memory of a graph."""

import torch

step = torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")
plain = torch.compile(lambda x: x.relu())


@torch.no_grad()
def listed(batches):
    outs, sums = [], []
    for batch in batches:
        out = step(batch)
        outs.append(out.clone())
        sums.append(out.sum().item())
        local = []
        local.append(out)
    return torch.stack(outs), sums


@torch.no_grad()
def without_graphs(batches, state):
    outs = []
    for batch in batches:
        outs.append(plain(batch))
        state = plain(state)
    return outs, state


def fed_back(state):
    with torch.inference_mode():
        for _ in range(5):
            state = step(state).clone()
    return state


def one_step(batches):
    outs = []
    for batch in batches:
        outs.append(step(batch))  # one backward is due for all of them
    torch.stack(outs).sum().backward()


@torch.no_grad()
def into_a_tensor(batches):
    rows = torch.empty(len(batches), 8, 8)
    for index, batch in enumerate(batches):
        rows[index] = step(batch)
    return rows
