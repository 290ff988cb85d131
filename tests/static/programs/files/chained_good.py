"""In training a backward holds chained calls together; copies live by themselves."""

import torch

encode = torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")
decode = torch.compile(lambda x: x.cos(), mode="reduce-overhead")


def train(batches):
    for batch in batches:
        decode(encode(batch)).sum().backward()


@torch.no_grad()
def copied(batch):
    hidden = encode(batch).clone()
    return decode(hidden).sum().item()


@torch.no_grad()
def alone(batch):
    return encode(batch).sum().item()
