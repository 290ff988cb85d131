"""A compiled lambda made in every step, with options that make a new backend each time."""
import torch

AS_WRITTEN = True


def make():
    weight = torch.randn(4, 4)

    def train_step(x):
        def backend(graph, example_inputs):
            return graph.forward

        forward = torch.compile(lambda t: (t @ weight).relu(), backend=backend)
        return forward(x).sum()

    return train_step, [(torch.randn(2, 4),)] * 5


EXPECT = [{"code": "RC219", "kind": "recompile", "line": "forward = torch.compile(", "fix": ["once", "outside", "loop"]}]
