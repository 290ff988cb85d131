"""RC2xx: recompiles because Python state around the tensors changed."""

from __future__ import annotations

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.recompiles import Recompile, values_seen
from torchproof.checking.rules.rule import EventGroup
from torchproof.observe import Guard
from torchproof.records import Severity


class ScalarArgument(Recompile):
    """A Python number, bool or string argument changes between calls.

    ## Why
    The first value is compiled in. A changed int or float becomes dynamic on the second
    compile; every bool and string gets a graph of its own.

    ## Bad
        shift(x, 5); shift(x, 7)

    ## Good
        shift(x, torch.tensor(5)); shift(x, torch.tensor(7))

    ## Fix safety
    Same values; a tensor cannot decide a Python branch.
    """

    code = "RC210"
    causes = ("value",)

    def changed(self, guard: Guard, group: EventGroup) -> str:
        return f"the Python value `{guard.source}` changed ({values_seen(group)})"

    def why(self, guard: Guard, group: EventGroup) -> str:
        return f"`{guard.source}` was compiled in as the constant {guard.expected}"

    def remedy(self, guard: Guard, group: EventGroup) -> str:
        if guard.other == "closure":
            return (
                f"`{guard.source}` is held by a closure that is made anew: make the"
                f" function once, outside the loop, and pass `{guard.source}` as an"
                " argument (a tensor, if it is a number)"
            )
        if self.per_value(guard):
            return (
                f"each value of `{guard.source}` is a graph of its own: keep it fixed,"
                " compile a separate function for each constant, or warm up every"
                " value before serving; if it only scales numbers, pass it as a"
                " tensor argument"
            )
        value = guard.source if "path" in group.data else guard.expected
        return (
            f"to avoid it, pass `{guard.source}` as a tensor argument:"
            f" torch.tensor({value}); as a Python number it costs one"
            " recompile, then it is dynamic"
        )


class TypeChange(Recompile):
    """An argument is None, or of another type, on some calls.

    ## Why
    `is None` and the type of an argument are decided while tracing.

    ## Bad
        attend(x, None); attend(x, mask)

    ## Good
        attend(x, no_mask); attend(x, mask)      # always a tensor

    ## Fix safety
    The default tensor must be neutral: zeros to add, ones to multiply.
    """

    code = "RC211"
    causes = ("type",)

    def changed(self, guard: Guard, group: EventGroup) -> str:
        return (
            f"`{guard.source}` is of another type on some calls ({values_seen(group)})"
        )

    def why(self, guard: Guard, group: EventGroup) -> str:
        return f"the type of `{guard.source}` is part of what was compiled"

    def remedy(self, guard: Guard, group: EventGroup) -> str:
        if "path" not in group.data and "." in guard.source:  # no argument: state
            return (
                f"give `{guard.source}` its value before the first call (a preallocated"
                " buffer, if it holds a tensor) instead of None; or call the model once"
                " before it is compiled, if its first call sets it"
            )
        return (
            f"always pass the same type for `{guard.source}` (a list or a tuple, not"
            " either): a default tensor (a default mask of zeros or ones) instead of"
            " None; or warm up one call of each kind"
        )


class ContainerShape(Recompile):
    """A list, tuple or dict has another length or other keys.

    ## Why
    Containers are unrolled while tracing: their length and keys are compiled in.

    ## Bad
        self.past.append(h)          # one longer every call

    ## Good
        self.past[:, position] = h   # a preallocated buffer, written with index_copy_

    ## Fix safety
    A buffer holds a maximum length: mask what is not filled yet.
    """

    code = "RC212"
    causes = ("length", "keys")

    def changed(self, guard: Guard, group: EventGroup) -> str:
        what = "length" if guard.cause == "length" else "keys"
        return f"the {what} of `{guard.source}` changed ({values_seen(group)})"

    def why(self, guard: Guard, group: EventGroup) -> str:
        return (
            f"the contents of `{guard.source}` are unrolled while tracing, so its"
            f" {guard.cause} is compiled in"
        )

    def remedy(self, guard: Guard, group: EventGroup) -> str:
        if len(group.data.get("path", (0, 0))) == 1:
            return (
                f"pass the same arguments to {group.compiled} in every call, with a"
                " tensor or the default in place of what is missing in some"
            )
        if guard.cause == "keys":
            return (
                f"give `{guard.source}` the same keys in the same order on every call,"
                " or pass its tensors as separate arguments"
            )
        return (
            f"keep `{guard.source}` at a fixed length: preallocate a static tensor"
            " buffer and write into it (index_copy_, or self.buffer[:, i] = ...),"
            " stack the items into one tensor, or keep the list outside the compiled"
            " function"
        )


class AttributeChange(Recompile):
    """An attribute of a module or object changes between calls.

    ## Why
    Attributes are read while tracing; ints on an nn.Module stay constants for ever.

    ## Bad
        self.calls += 1

    ## Good
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    ## Fix safety
    Same values; a tensor cannot decide a Python branch.
    """

    code = "RC213"
    causes = ("attribute",)

    def changed(self, guard: Guard, group: EventGroup) -> str:
        return f"the attribute `{guard.source}` changed ({values_seen(group)})"

    def why(self, guard: Guard, group: EventGroup) -> str:
        return (
            f"`{guard.source}` is a Python value that was compiled in as"
            f" {guard.expected}"
        )

    def remedy(self, guard: Guard, group: EventGroup) -> str:
        name = guard.source.rsplit(".", 1)[-1]
        if self.per_value(guard):
            return (
                f"keep the attribute `{guard.source}` fixed: set it once before"
                f" compiling, or compile a separate module for each value of {name}; if"
                " it must change, warm up each value"
            )
        return (
            f'make `{guard.source}` a tensor: self.register_buffer("{name}",'
            f" torch.tensor({guard.expected})) and update it in place; or update it"
            " outside the compiled function; for ints on a module"
            " torch._dynamo.config.allow_unspec_int_on_nn_module = True makes them"
            " dynamic"
        )

    def severity(self, group: EventGroup) -> Severity:
        # Ints of a module never become dynamic: each new value compiles again.
        static = (
            "HINT: torch.compile considers integer attributes"
            in group.data["guard"].text
        )
        usual = super().severity(group)
        return "medium" if static and usual == "low" else usual


class GlobalValue(Recompile):
    """A global variable changes between calls.

    ## Why
    Globals are read while tracing and compiled in.

    ## Bad
        def f(x): return x * SCALE

    ## Good
        def f(x, scale): return x * scale

    ## Fix safety
    Same values.
    """

    code = "RC214"
    causes = ("global",)

    def changed(self, guard: Guard, group: EventGroup) -> str:
        return f"the global `{guard.source}` changed ({values_seen(group)})"

    def remedy(self, guard: Guard, group: EventGroup) -> str:
        return (
            f"pass `{guard.source}` as an argument, as a tensor if it changes often"
            f" (torch.tensor({guard.expected})), instead of reading the global in the"
            " compiled function"
        )


class NewObject(Recompile):
    """A function, closure or object is a new one each call.

    ## Why
    Dynamo guards on the identity of functions and of objects it cannot look into.

    ## Bad
        for x in data: run(x, lambda y: y + 1)

    ## Good
        def increment(y): return y + 1
        for x in data: run(x, increment)

    ## Fix safety
    Same values, if the function does not depend on where it was made.
    """

    code = "RC215"
    causes = ("identity",)

    def changed(self, guard: Guard, group: EventGroup) -> str:
        return f"`{guard.source}` is another {guard.other or 'object'} than before"

    def why(self, guard: Guard, group: EventGroup) -> str:
        return (
            f"the graph holds for one particular `{guard.source}`"
            f" ({guard.other or 'an object'}), by identity"
        )

    def remedy(self, guard: Guard, group: EventGroup) -> str:
        once = (
            f"create `{guard.source}` (and its class) once, outside the loop, and reuse"
            " the same one each time; pass what differs as a tensor argument"
        )
        if group.place.owner == "library" and group.facts.events("graph_break"):
            return (
                f"remove the graph breaks: they make torch compile {group.function}"
                f" on its own, once for each `{guard.source}` that it serves"
            )
        if guard.other in {"function", "code"}:
            return once
        return (
            f"{once}; if `{guard.source}` is an enum or a flag, each value is a graph"
            " of its own: keep it fixed, or compile a separate function for each"
            " constant"
        )


class GlobalState(Recompile):
    """Gradient mode, autocast or another global switch differs between calls.

    ## Why
    Torch's global state decides which graph is made, so each state has its own.

    ## Bad
        model(x); with torch.no_grad(): model(x)

    ## Good
        the same, with one warm-up call in each mode

    ## Fix safety
    None needed.
    """

    code = "RC216"
    causes = ("global_state",)

    def changed(self, guard: Guard, group: EventGroup) -> str:
        return f"the global state `{guard.source}` differs between calls"

    def why(self, guard: Guard, group: EventGroup) -> str:
        return f"torch's `{guard.source}` is part of what was compiled"

    def remedy(self, guard: Guard, group: EventGroup) -> str:
        return (
            f"set `{guard.source}` the same way around every call; if both are needed"
            " (training and evaluation), warm up one call in each, or compile a"
            " separate function for each"
        )


class TrainingFlag(Recompile):
    """module.train() and module.eval() alternate between calls.

    ## Why
    Dropout and batch norm differ, so each mode is a graph of its own.

    ## Bad
        for step in range(n): model.train(step % 2 == 0); model(x)

    ## Good
        warm up once in train() and once in eval()

    ## Fix safety
    Expected: two graphs, both kept.
    """

    code = "RC217"
    reference = torch_pages.MODULES
    causes = ("training",)

    def changed(self, guard: Guard, group: EventGroup) -> str:
        return f"`{guard.source}` flips between train() and eval()"

    def why(self, guard: Guard, group: EventGroup) -> str:
        return (
            f"`{guard.source}` decides what dropout and batch norm do, so each mode is"
            " compiled apart"
        )

    def remedy(self, guard: Guard, group: EventGroup) -> str:
        return (
            "expected once per mode: warm up one call in train() and one in eval(), or"
            " keep two separate compiled modules, one for training and one for"
            " evaluation"
        )


class LearningRate(Recompile):
    """A learning rate that is a Python float changes.

    ## Why
    Optimizer settings are Python values in param_groups; a scheduler changes them.

    ## Bad
        torch.optim.SGD(parameters, lr=0.1)

    ## Good
        torch.optim.SGD(parameters, lr=torch.tensor(0.1))

    ## Fix safety
    Same steps; some schedulers turn a tensor back into a float.
    """

    code = "RC218"
    reference = torch_pages.RATES
    causes = ("learning_rate",)

    def changed(self, guard: Guard, group: EventGroup) -> str:
        return (
            f"the learning rate `{guard.source}` is a Python float that changes"
            f" ({values_seen(group)})"
        )

    def remedy(self, guard: Guard, group: EventGroup) -> str:
        return (
            "make it a tensor when the optimizer is built: lr=torch.tensor(rate), on a"
            " GPU with capturable=True where the optimizer has it; as a float it costs"
            " one recompile"
        )
