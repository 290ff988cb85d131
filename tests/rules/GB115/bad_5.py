"""uuid and environment: an id for the request and a flag written to the environment."""
import os
import uuid

import torch


def traced_request(x):
    x = x.relu()
    request = uuid.uuid4()
    x = x * 2
    os.environ["LAST_REQUEST"] = "seen"
    return x + 1, request


def make():
    return traced_request, [(torch.randn(4),)]


EXPECT = [
    {"code": "GB115", "kind": "graph_break", "line": "uuid.uuid4()", "fix": ["outside", "argument", "pass", "before"]},
    {"code": "GB115", "kind": "graph_break", "line": "os.environ[", "fix": ["outside", "argument", "before"]},
]
