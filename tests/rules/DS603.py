import torch
import torch._dynamo

OPTIONS = {"*": {"compile": {"dynamic": True}}, "bad_2": {}}


# dynamic=True, but a Python loop over the sequence fixes its length.
def scan(sequence):  # run: RC201
    state = torch.zeros(3)
    for step in range(sequence.shape[0]):  # read: SP511 # run: DS603
        state = state * 0.9 + sequence[step]
    return state


def bad():
    return scan, [(torch.randn(n, 3),) for n in (4, 5, 6)]


# maybe_mark_dynamic is only a hint.
TABLE = torch.randn(6, 4)


def positions(tokens):
    return tokens.tanh() + TABLE  # run: DS603


def bad_2():
    tokens = torch.randn(2, 6, 4)
    torch._dynamo.maybe_mark_dynamic(tokens, 1)
    return positions, [(tokens,)] * 2


# dynamic=True and code that treats sizes as numbers only.
def scan_2(sequence):
    steps = torch.arange(sequence.shape[0], dtype=sequence.dtype)
    decay = 0.9 ** (sequence.shape[0] - 1 - steps)
    return (sequence * decay[:, None]).sum(0) / sequence.shape[0]


def good():
    return scan_2, [(torch.randn(n, 3),) for n in (4, 5, 6)]
