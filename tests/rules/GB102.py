import torch


# A generator that branches on data.
def active_rows(x):
    for row in x:
        if row.sum() > 0:  # <- GB102
            yield row


def pool(x):
    x = x * 2
    total = torch.zeros(4)
    for row in active_rows(x):
        total = total + row
    return total


def bad_7():  # <- NC805
    return pool, [(torch.ones(3, 4),)] * 3
