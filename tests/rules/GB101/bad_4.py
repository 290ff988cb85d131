"""A value read inside a Python loop: Dynamo gives up on the whole function and runs it eagerly."""
import torch


def power_iteration(matrix, vector):
    norms = []
    for _ in range(4):
        vector = matrix @ vector
        norm = vector.norm()
        norms.append(float(norm))
        vector = vector / norm
    return vector, norms


def make():
    return power_iteration, [(torch.eye(5) * 2 + 0.1, torch.ones(5)) for _ in range(3)]


EXPECT = [{"code": "GB101", "kind": "skipped_frame", "line": "float(norm)", "severity": "high", "fix": ["tensor", "stack", "outside", "loop", "capture_scalar_outputs"]}]
