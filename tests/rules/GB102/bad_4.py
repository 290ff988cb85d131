"""An assert whose message is an f-string turns into a Python branch on the tensor."""
import torch


def embed(ids, table):
    ids = ids.clamp(min=0)
    assert (ids < table.shape[0]).all(), f"ids outside a table of {table.shape[0]} rows"
    return table[ids] * 2


def make():
    return embed, [(torch.tensor([0, 3, 1]), torch.randn(5, 4))] * 2


EXPECT = [{"code": "GB102", "kind": "graph_break", "line": "assert (ids < table.shape[0]).all()", "fix": ["_assert", "message", "constant", "assert", "outside"]}]
