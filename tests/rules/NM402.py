import functools
import torch

OPTIONS = {"bad": {"compile": {"backend": "eager"}}}


# Dynamo traces through a cache: the value is computed anew, eager keeps the first.
settings = {"gain": 1.0}


@functools.lru_cache
def gain():
    return settings["gain"]


def bad():
    def f(x):  # run: NM402
        return x * gain()

    return f, [(torch.ones(3),)] * 2


def before_call(fn, index):
    settings["gain"] = 1.0 + index
