import torch

OPTIONS = {"bad_2": {"compile": {"backend": "eager"}}}
GAIN = 1.0


# A filter leaves out the guard on a global that changes.
def bad():
    def f(x):
        return x * GAIN

    keep = {"guard_filter_fn": lambda guards: [not guard.is_global for guard in guards]}
    return torch.compile(f, backend="eager", options=keep), [(torch.ones(3),)] * 2  # run: NM415


def before_call(fn, index):
    global GAIN
    GAIN = 1.0 + index
    if index == 1 and getattr(fn, "unguarded", False):
        torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)  # run: NM415


# Guards are switched off after the first call, and the input changes.
def bad_2():
    def f(x, operation):
        return x * 2 if operation == "double" else x * 3

    f.unguarded = True
    return f, [(torch.ones(3), each) for each in ("double", "triple")]
