import torch
import torch._dynamo


def marked(fn, *shapes, at=0, **bounds):
    inputs = [torch.randn(shape) for shape in shapes]
    for x in inputs:
        torch._dynamo.mark_dynamic(x, at, **bounds)
    return fn, [(x,) for x in inputs]


# The batch is marked dynamic, but a test for equality pins it to one value.
def head(x):
    x = x.tanh()
    if x.shape[0] == 8:  # run: DS601
        x = x * 2
    return x.relu()


def bad():
    return marked(head, (8, 4))


# A marked length is added to a position table of fixed size.
TABLE = torch.randn(6, 4)


def positions(tokens):
    return tokens.tanh() + TABLE  # run: DS601


def bad_2():
    return marked(positions, (2, 6, 4), at=1)


# A range given with mark_dynamic does not fit the code, which needs at least five.
def chunked(x):
    if x.shape[0] > 4:  # run: DS601
        return x[:4].sum(0) + x[4:].sum(0)
    return x.sum(0)


def bad_3():
    return marked(chunked, (8, 3), min=2, max=16)


# The position table is cut to the length at hand.
LONG_TABLE = torch.randn(16, 4)


def positions_2(tokens):
    return tokens.tanh() + LONG_TABLE[: tokens.shape[1]]


def good():
    return marked(positions_2, (2, 6, 4), (2, 7, 4), (2, 9, 4), at=1)
