import torch


# Steps are marked, a backward holds chained calls together, or copies are kept.
encode = torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")
decode = torch.compile(lambda x: x.cos(), mode="reduce-overhead")


def marked(batches):
    total = 0.0
    with torch.no_grad():
        for batch in batches:
            torch.compiler.cudagraph_mark_step_begin()
            hidden = encode(batch)
            total += decode(hidden).sum().item()
    return total


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
