"""TS1xx: TorchScript and its ways out. Reading the source finds these."""

from __future__ import annotations

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.configuration import ReadOnly


class TorchScript(ReadOnly):
    """Base of the rules about torch.jit."""

    reference = torch_pages.TORCHSCRIPT


class TracedBranch(TorchScript):
    """torch.jit.trace keeps one outcome of a branch or value for all inputs.

    ## Why
    The trace has the operations that ran for the example. An `if` on a tensor, or
    `.item()`, happened in Python and is not among them: other inputs get a wrong
    answer, and nothing is raised.

    ## Bad
        def gate(x):
            if x.sum() > 0:
                return x + 1
            return x - 1

        traced = torch.jit.trace(gate, example)

    ## Good
        def gate(x):
            return torch.where(x.sum() > 0, x + 1, x - 1)

        fast = torch.compile(gate)

    ## Fix safety
    Both sides are computed; answers for inputs unlike the example become right.
    """

    code = "TS101"


class DeprecatedScript(TorchScript):
    """torch.jit is deprecated.

    ## Why
    torch warns on every use of script, trace and freeze. What replaces them
    needs no special Python.

    ## Bad
        fast = torch.jit.script(model)

    ## Good
        fast = torch.compile(model)                        # in Python
        program = torch.export.export(model, (example,))   # to ship without Python

    ## Fix safety
    Same values up to rounding. A program that is loaded from C++ needs torch.export and
    AOTInductor in place of a TorchScript file.
    """

    code = "TS102"


class Unscriptable(TorchScript):
    """Scripted code has something that torch.jit.script refuses.

    ## Why
    The whole function is read as TorchScript, branches that never run included. try,
    lambda, generators, inner functions, sets, `:=`, match, imports, *args and **kwargs,
    and defaults without an annotation are no part of it.

    ## Bad
        @torch.jit.script
        def scale(x, factor=2.0):
            return x * factor

    ## Good
        @torch.compile
        def scale(x, factor=2.0):
            return x * factor

    ## Fix safety
    The program raised before.
    """

    code = "TS103"


class TracedTraining(TorchScript):
    """A module is traced in training mode, with its dropout or batch norm.

    ## Why
    The trace keeps what the module did in training mode. eval() on the traced module
    changes nothing of it: dropout goes on dropping, statistics go on moving.

    ## Bad
        traced = torch.jit.trace(Net(), example)

    ## Good
        traced = torch.jit.trace(Net().eval(), example)

    ## Fix safety
    Answers become those of eval mode.
    """

    code = "TS104"


class MixedWithCompile(TorchScript):
    """torch.compile of TorchScript, or TorchScript of what torch.compile made.

    ## Why
    Dynamo traces Python, and TorchScript has none. For what is scripted torch raises,
    or compiles nothing, by version; what is traced runs as it is. torch.jit raises for
    what is compiled.

    ## Bad
        fast = torch.compile(torch.jit.script(model))

    ## Good
        fast = torch.compile(model)

    ## Fix safety
    Same values up to rounding.
    """

    code = "TS105"


TORCHSCRIPT: tuple[TorchScript, ...] = (
    TracedBranch(),
    DeprecatedScript(),
    Unscriptable(),
    TracedTraining(),
    MixedWithCompile(),
)
