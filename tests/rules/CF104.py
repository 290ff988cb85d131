import torch


# Two functions with CUDA graphs are chained, and no step is marked.
encode = torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")
decode = torch.compile(lambda x: x.cos(), mode="reduce-overhead")


def named(batches):
    total = 0.0
    with torch.no_grad():
        for batch in batches:
            hidden = encode(batch)  # <- CF104
            total += decode(hidden).sum().item()
    return total


@torch.inference_mode()
def nested(batch):
    return decode(encode(batch)).sum().item()  # <- CF104
