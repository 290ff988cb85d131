"""Sites for tests of rewrites: a program with its finding marked by a comment."""

import sys
import textwrap
import types

from torchproof.fixing.rewrites import Draft, File, Rewrite, Site
from torchproof.records import Finding

MARK = "# <-"


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
    module = types.ModuleType("rewritten")
    sys.modules["rewritten"] = module  # torch 2.11 imports it when it compiles
    exec(compile(textwrap.dedent(text), "<rewritten>", "exec"), vars(module))
    return getattr(module, name)
