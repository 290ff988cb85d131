"""A function that is not traced but put into the graph is traced by AOTAutograd."""
import torch

COMPILE = {"backend": "aot_eager"}
settings = {"gain": 1.0}


def make():
    @torch.compiler.allow_in_graph
    def scale(x):
        return x * settings["gain"]

    def f(x):
        return scale(x) + 1

    return f, [(torch.ones(3),)] * 2


def before_call(fn, index):
    settings["gain"] = 1.0 + index


EXPECT = [{"code": "NM419", "kind": "stale_state", "severity": "high", "line": "def f(x)", "fix": ["argument", "reset"]}]
