"""Sites for tests of rewrites: a program with its finding marked by a comment."""

import itertools
import sys
import textwrap
import types

import torch
import torch._dynamo

from torchproof.fixing.rewrites import Draft, File, Rewrite, Site
from torchproof.records import Finding

MARK = "# <-"
_numbers = itertools.count()


def site(text: str, code: str = "GB102") -> Site:
    """The site at the line with the comment `# <-`, or `# <- expression`."""
    text = textwrap.dedent(text).lstrip("\n")
    lines = text.splitlines()
    [index] = [i for i, line in enumerate(lines) if MARK in line]
    line, _, underlined = lines[index].partition(MARK)
    lines[index] = line = line.rstrip()
    underlined = underlined.strip()
    start = line.index(underlined) if underlined else None
    columns = None if start is None else (start, start + len(underlined))
    finding = Finding(code, "graph_break", "high", "", "", "", line=index + 1)
    file = File("model.py", "\n".join(lines) + "\n")
    return Site(finding, file, index + 1, columns)


def rewritten(rewrite: Rewrite, text: str, code: str = "GB102") -> Draft:
    return rewrite(site(text, code))


def program(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


def function_of(text: str, name: str = "step"):
    """A function of a program, compiled from its text."""
    # Torch 2.11 keeps the modules that it imports when it compiles, and has one wrapper
    # for all functions without a file, which reaches the recompile limit.
    torch._dynamo.reset()
    module = types.ModuleType(f"rewritten_{next(_numbers)}")
    sys.modules[module.__name__] = module
    exec(compile(textwrap.dedent(text), "<rewritten>", "exec"), vars(module))
    return getattr(module, name)
