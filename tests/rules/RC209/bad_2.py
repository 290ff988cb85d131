"""A list of states holds the same tensor several times at first (initialised by repetition)."""
import torch


def mix(states):
    return states[0] * 2 + states[1]


def make():
    zero = torch.zeros(4)
    return mix, [([zero, zero],), ([torch.ones(4), torch.zeros(4)],), ([torch.ones(4), torch.ones(4)],)]


EXPECT = [{"code": "RC209", "kind": "recompile", "line": "states[0] * 2 + states[1]", "fix": ["same tensor", "clone", "alias", "twice"]}]
