import asyncio
import torch
from decimal import Decimal


# decimal.Decimal inside the function.
def priced(x):
    x = x * 2
    rate = float(Decimal("1.25"))  # run: GB105, CE799>=2.13,<2.14
    return x * rate


def bad():
    return priced, [(torch.randn(4),)]


# asyncio.run inside the function.
async def fetch(x):
    return x + 1


def gathered(x):
    x = x * 2
    y = asyncio.run(fetch(x))  # run: GB105, GB111, NM407
    return y.relu()


def bad_2():
    return gathered, [(torch.randn(4),)]


# The decimal is turned into a float outside.
RATE = float(Decimal("1.25"))


def good():
    return lambda x: x * RATE, [(torch.randn(4),)] * 3
