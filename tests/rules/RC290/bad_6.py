"""A lower limit set by the user is soon hit by a dtype argument."""
import torch
import torch._dynamo


def cast(x, dtype):
    y = x.to(dtype)
    return y * 2


def make():
    torch._dynamo.config.recompile_limit = 2
    return cast, [(torch.ones(4), dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32)]


EXPECT = [{"code": "RC290", "kind": "recompile_limit", "line": "y = x.to(dtype)", "severity": "high", "fix": ["dtype", "argument", "separate", "recompile_limit", "fixed"]}]
