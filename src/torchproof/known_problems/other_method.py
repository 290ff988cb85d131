"""Only `forward` of a compiled module is compiled.

Any other method runs on the inner module, in eager, without a warning.

Workaround: compile the method itself.

Group: nothing
Code: NC802
Reference: https://docs.pytorch.org/docs/main/generated/torch.compile.html
"""

import torch
from torch import nn
from torch._dynamo.testing import CompileCounter


class Encoder(nn.Module):
    def encode(self, x):
        return x.sin() + 1


counter = CompileCounter()
encoder = torch.compile(Encoder(), backend=counter)
encoder.encode(torch.randn(4))
assert counter.frame_count == 0

# The workaround
encoder = Encoder()
encoder.encode = torch.compile(encoder.encode, backend=counter)
encoder.encode(torch.randn(4))
assert counter.frame_count == 1
