"""A backend that returns None instead of a callable."""
import torch

AS_WRITTEN = True


def forgetful_backend(graph, example_inputs):
    graph.graph.eliminate_dead_code()
    graph.recompile()


def make():
    def fn(x):
        return x.sin() + 1

    return torch.compile(fn, backend=forgetful_backend), [(torch.randn(4),)]


EXPECT = [{"code": "CE703", "kind": "compile_error", "line": None, "severity": "high", "fix": ["backend", "return", "callable"]}]
