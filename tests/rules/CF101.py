import logging
import torch


# Compiling is guarded where nothing can fail yet.
def prepare(model, backend):
    try:
        model = torch.compile(model, backend=backend)  # <- CF101
    except Exception:
        logging.warning("not compiled")
    return model


def guarded(model):
    try:
        return torch.compile(model, mode="max-autotune")  # <- CF101
    except (RuntimeError, ValueError):
        return model


# The first call is in the try, or the except asks for something else.
def first_call(model, example):
    try:
        compiled = torch.compile(model)
        compiled(example)
        return compiled
    except Exception:
        return model


def available(model):
    try:
        return torch.compile(model)
    except AttributeError:
        return model


def once(model, example):
    try:
        return torch.compile(model)(example)
    except RuntimeError:
        return model(example)


def cleaned(model, files):
    model = torch.compile(model)
    try:
        return model(files.read())
    finally:
        files.close()


def inner(model):
    try:
        files = open("weights")  # noqa: SIM115
    except OSError:
        return torch.compile(model)
    return files


def explained(model, arguments):
    try:
        return torch.compile(model, **arguments)
    except Exception as error:
        raise ValueError("torch.compile rejects its arguments") from error


TEXT = """
try:
    model = torch.compile(model)
except Exception:
    pass
"""
