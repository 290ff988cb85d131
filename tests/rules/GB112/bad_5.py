"""The compiled function reports bad input by raising; the caller catches it. Every such call runs eagerly."""
import torch
from torch import nn

AS_WRITTEN = True


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        h = self.fc(x[..., :4])
        if x.shape[-1] != 4:
            raise ValueError("expected four features")
        return h.relu()


def make():
    compiled = torch.compile(Model(), backend="eager")

    def serve(x):
        try:
            return compiled(x)
        except ValueError:
            return None

    return serve, [(torch.randn(2, 5),)] * 3


EXPECT = [{"code": "GB112", "kind": "skipped_frame", "line": "raise ValueError(", "severity": "high", "fix": ["outside", "before", "raise", "exception"]}]
