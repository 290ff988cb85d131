import torch


# The same function is used on two devices.
def attend(q, k):  # run: RC206
    return torch.softmax(q @ k.t(), -1)


def bad():
    return attend, [(torch.randn(4, 8, device=each),) * 2 for each in ("cpu", "meta")]


# A tensor of inference mode in some calls.
def next_logits(token, table):  # run: RC206
    return table[token].softmax(-1)


def bad_3():
    table = torch.randn(10, 4)
    with torch.inference_mode():
        sampled = torch.tensor([2, 3])
    return next_logits, [(torch.tensor([1, 2]), table), (sampled, table), (sampled, table)]


# One device throughout.
def good():
    return attend, [(torch.randn(4, 8), torch.randn(4, 8)) for _ in range(3)]
