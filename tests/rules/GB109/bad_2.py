"""deepcopy of a dictionary of tensors inside a step."""
import copy

import torch


def step(batch):
    scaled = batch["x"] * 2
    kept = copy.deepcopy({"y": scaled})
    return kept["y"] + batch["x"]


def make():
    return step, [({"x": torch.randn(4)},)] * 2


EXPECT = [{"code": "GB109", "kind": "graph_break", "line": "copy.deepcopy(", "fix": ["clone", "outside"]}]
