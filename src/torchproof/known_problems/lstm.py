"""`nn.LSTM`, `nn.GRU` and `nn.RNN` are not traced.

By default torch does not trace into them, and a function that calls one breaks.

Workaround: `torch._dynamo.config.allow_rnn = True`, which unrolls the loop over time:
the graph grows with the length.

Group: breaks
Code: GB108
"""

import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

lstm, counter, x = nn.LSTM(4, 4), CompileCounter(), torch.randn(3, 1, 4)


def f(x):
    x = x * 2
    return lstm(x)[0] + 1


torch.compile(f, backend=counter)(x)
# 0 under 2.11 and 2.13: not even the rest of it is compiled
assert counter.frame_count in (0, 2)

# The workaround
torch._dynamo.reset()
counter.clear()
torch._dynamo.config.allow_rnn = True
torch.compile(f, backend=counter)(x)
assert counter.frame_count == 1
