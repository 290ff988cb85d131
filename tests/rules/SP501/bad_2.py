"""Six graph breaks between graphs of one operation each: the breaks are what costs."""
import torch

COMPILE = {"backend": "aot_eager"}


def make():
    def step(x):
        x = x * 2
        torch._dynamo.graph_break()
        x = x + 1
        torch._dynamo.graph_break()
        x = x.sin()
        torch._dynamo.graph_break()
        x = x * 3
        torch._dynamo.graph_break()
        x = x + 4
        torch._dynamo.graph_break()
        x = x.cos()
        torch._dynamo.graph_break()
        return x - 1

    return step, [(torch.randn(16),)] * 3


EXPECT = [{"code": "SP501", "kind": "slowdown", "line": "def step(x)", "fix": ["remove the graph breaks"]}]
