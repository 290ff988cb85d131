"""The first call is in the try, or the except asks for something else."""

import torch


def prepare(model, example):
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
