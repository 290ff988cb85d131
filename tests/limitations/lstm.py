"""`nn.LSTM`, `nn.GRU` and `nn.RNN` are not traced.

torch does not look inside of them unless asked to, and a function that calls one is
cut.

Way round: `torch._dynamo.config.allow_rnn = True`, which unrolls the loop over time:
the graph grows with the length.

Group: breaks
Code: GB108
"""

import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

lstm, counter, x = nn.LSTM(4, 4), CompileCounter(), torch.randn(3, 1, 4)
fast = torch.compile(lambda x: lstm(x)[0] + 1, backend=counter, fullgraph=True)
refused = ""
try:
    fast(x)
except torch._dynamo.exc.Unsupported as failure:
    refused = str(failure)
assert "LSTM" in refused

# The way round
torch._dynamo.config.allow_rnn = True
fast(x)
assert counter.frame_count == 1
