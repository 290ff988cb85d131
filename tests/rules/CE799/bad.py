"""decimal.Decimal inside the function: Dynamo itself fails (an internal error, not a graph break)."""
from decimal import Decimal

import torch


def priced(x):
    x = x * 2
    rate = float(Decimal("1.25"))
    return x * rate


def make():
    return priced, [(torch.randn(4),)]


EXPECT = [{"code": "CE799", "kind": "compile_error", "line": "Decimal(\"1.25\")", "severity": "high", "fix": ["outside", "disable", "internal", "report"], "torch": ">=2.13,<2.14"}]
