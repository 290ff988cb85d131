"""generate() of a compiled model calls self(...), which is the original, not the wrapper."""
import torch
from torch import nn

AS_WRITTEN = True


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10)

    def forward(self, ids):
        return self.head(self.embed(ids))

    @torch.no_grad()
    def generate(self, ids, steps):
        for _ in range(steps):
            token = self(ids)[-1:].argmax(-1)
            ids = torch.cat([ids, token])
        return ids


def make():
    model = torch.compile(Decoder(), backend="eager")

    def serve(ids):
        return model.generate(ids, 3)

    return serve, [(torch.tensor([1, 2, 3]),)] * 2


EXPECT = [{"code": "NC802", "kind": "no_op", "line": "return model.generate(ids, 3)", "severity": "high", "fix": ["generate", "method", "forward"]}]
