"""All clean programs of the rules as one target."""

import importlib.util

import rule_programs
import torch

from torchproof.targets import calls

# Their classes and functions are compiled where they are defined, or not at all.
MEASURED = ("CG", "NM", "SP")


def clean():
    return [
        each
        for each in rule_programs.programs()
        if each.is_clean and not each.path.stem.startswith(MEASURED)
    ]


def made(program):
    spec = importlib.util.spec_from_file_location(program.path.stem, program.path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function, arguments = getattr(module, program.factory)()
    if not program.options.get("as_written"):
        options = {"backend": "eager", **program.options.get("compile", {})}
        function = torch.compile(function, **options)
    return function, arguments


def make():
    ready = [made(program) for program in clean()]

    def run_all():
        for function, arguments in ready:
            for each in arguments:
                calls.invoke(function, each, train=False)

    return run_all, [()]
