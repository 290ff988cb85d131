import torch

OPTIONS = {"bad": {"compile": {"backend": "aot_eager"}}}


# A function that is not traced but put into the graph is traced by AOTAutograd.
settings = {"gain": 1.0}


def bad():
    @torch.compiler.allow_in_graph
    def scale(x):
        return x * settings["gain"]

    def f(x):  # run: NM419
        return scale(x) + 1

    return f, [(torch.ones(3),)] * 2


def before_call(fn, index):
    settings["gain"] = 1.0 + index
