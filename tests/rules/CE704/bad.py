"""fullgraph=True and a print: the break becomes an error."""
import torch
from torch import nn

COMPILE = {"fullgraph": True}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        print("hidden", x.shape)
        return x.relu()


def make():
    return Model(), [(torch.randn(2, 4),)]


EXPECT = [{"code": "CE704", "kind": "compile_error", "line": "print(", "severity": "high", "fix": ["print", "is_compiling", "remove", "fullgraph"]}]
