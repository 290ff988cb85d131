"""TS1xx: TorchScript and its replacements. Only source analysis reports these rules."""

from __future__ import annotations

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.configuration import SourceRule


class TorchScript(SourceRule):
    """Base class of the rules for torch.jit."""

    reference = torch_pages.TORCHSCRIPT


class TracedBranch(TorchScript):
    """torch.jit.trace uses one outcome of a branch or value for all inputs.

    ## Why
    The trace contains the operations that ran for the example. An `if` on a tensor, or
    `.item()`, ran in Python and is not part of it. Other inputs get wrong outputs, and
    no error is raised.

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
    Both sides are computed. Outputs for inputs unlike the example become right.
    """

    code = "TS101"


class DeprecatedScript(TorchScript):
    """torch.jit is deprecated.

    ## Why
    Torch warns on every use of script, trace and freeze. The replacements accept
    ordinary Python.

    ## Bad
        fast = torch.jit.script(model)

    ## Good
        fast = torch.compile(model)                        # in Python
        program = torch.export.export(model, (example,))   # to ship without Python

    ## Fix safety
    The values are the same up to rounding. A program that is loaded from C++ needs
    torch.export and AOTInductor instead of a TorchScript file.
    """

    code = "TS102"


class Unscriptable(TorchScript):
    """Scripted code contains something that torch.jit.script rejects.

    ## Why
    TorchScript compiles the whole function, including branches that never run. It does
    not support try, lambda, generators, inner functions, sets, `:=`, match, imports,
    *args and **kwargs, or defaults without an annotation.

    ## Bad
        @torch.jit.script
        def scale(x, factor=2.0):
            return x * factor

    ## Good
        @torch.compile
        def scale(x, factor=2.0):
            return x * factor

    ## Fix safety
    The program raised an error before.
    """

    code = "TS103"


class TracedTraining(TorchScript):
    """A module with dropout or batch norm is traced in training mode.

    ## Why
    The trace contains what the module did in training mode. eval() on the traced module
    does not change it: dropout stays active, and running statistics keep changing.

    ## Bad
        traced = torch.jit.trace(Net(), example)

    ## Good
        traced = torch.jit.trace(Net().eval(), example)

    ## Fix safety
    The outputs become those of eval mode.
    """

    code = "TS104"


class MixedWithCompile(TorchScript):
    """torch.compile is applied to TorchScript, or TorchScript to compiled code.

    ## Why
    Dynamo traces Python, and TorchScript has none. For a scripted module torch raises
    an error or compiles nothing, depending on the version. A traced module runs
    unchanged. torch.jit raises an error for a compiled module.

    ## Bad
        fast = torch.compile(torch.jit.script(model))

    ## Good
        fast = torch.compile(model)

    ## Fix safety
    The values are the same up to rounding.
    """

    code = "TS105"
