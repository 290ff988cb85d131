"""Programs as one target: each is compiled and called for itself."""

import importlib.util
from pathlib import Path

import torch

# Nothing of a run without measurements or CUDA graphs shows what these do.
LEFT_OUT = ("environment", "kept")
PROGRAMS = [
    path
    for path in sorted((Path(__file__).parent / "programs").glob("*.py"))
    if not path.stem.startswith(LEFT_OUT)
]


def loaded(path):
    spec = importlib.util.spec_from_file_location(f"program_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make():
    made = [loaded(path).make() for path in PROGRAMS]
    compiled = [(torch.compile(fn, backend="eager"), calls) for fn, calls in made]

    def every(index):
        for function, calls in compiled:
            if index < len(calls):
                function(*calls[index])

    return every, [(index,) for index in range(4)]
