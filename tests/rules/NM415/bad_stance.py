"""Guards are switched off after the first call, and the input changes."""
import torch

COMPILE = {"backend": "eager"}


def make():
    def f(x, how):
        return x * 2 if how == "double" else x * 3

    return f, [(torch.ones(3), how) for how in ("double", "triple")]


def before_call(fn, index):
    if index == 1:
        torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)


EXPECT = [{"code": "NM415", "kind": "stale_state", "severity": "high", "line": "set_stance(", "fix": ["skip_guard_eval_unsafe", "reset"]}]
