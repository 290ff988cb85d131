"""RC21x: recompiles because Python state changed, rather than an input tensor."""

from __future__ import annotations

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.recompiles import Recompile, values_seen
from torchproof.checking.rules.rule import EventGroup
from torchproof.observe import Guard
from torchproof.records import Severity


class ScalarArgument(Recompile):
    """A Python number, bool or string argument changes between calls.

    ## Why
    The first value becomes a constant of the graph. A changed int or float becomes
    dynamic in the second compilation. Every bool and every string gets its own graph.

    ## Bad
        shift(x, 5); shift(x, 7)

    ## Good
        shift(x, torch.tensor(5)); shift(x, torch.tensor(7))

    ## Fix safety
    The values are the same. A tensor cannot decide a Python branch.
    """

    code = "RC210"
    causes = ("value",)
    changed_text = "the Python value `{guard.source}` changed ({seen})"
    cause_text = "`{guard.source}` was compiled in as the constant {guard.expected}"

    def remedy(self, guard: Guard, group: EventGroup) -> str:
        if guard.other == "closure":
            return (
                f"`{guard.source}` belongs to a closure that is created again each"
                " time: create the function once, outside the loop, and pass"
                f" `{guard.source}` as an argument (a tensor, if it is a number)"
            )
        if self.per_value(guard):
            return (
                f"each value of `{guard.source}` gets its own graph: keep it fixed,"
                " compile a separate function for each constant, or warm up with every"
                " value before serving; if it only scales numbers, pass it as a"
                " tensor argument"
            )
        value = guard.source if "path" in group.data else guard.expected
        return (
            f"to avoid the recompile, pass `{guard.source}` as a tensor argument:"
            f" torch.tensor({value}); a Python number costs one recompile and is"
            " dynamic from then on"
        )


class TypeChange(Recompile):
    """An argument is None, or has another type, on some calls.

    ## Why
    Dynamo evaluates `is None` and the type of an argument while tracing.

    ## Bad
        attend(x, None); attend(x, mask)

    ## Good
        attend(x, no_mask); attend(x, mask)      # always a tensor

    ## Fix safety
    The default tensor must be neutral: zeros if it is added, ones if it is multiplied.
    """

    code = "RC211"
    causes = ("type",)
    changed_text = "`{guard.source}` is of another type on some calls ({seen})"
    cause_text = "the type of `{guard.source}` is part of what was compiled"

    def remedy(self, guard: Guard, group: EventGroup) -> str:
        if "path" not in group.data and "." in guard.source:  # state, not an argument
            return (
                f"set `{guard.source}` before the first call (to a preallocated buffer,"
                " if it holds a tensor) instead of None; or, if the first call sets it,"
                " call the model once before you compile it"
            )
        return (
            f"always pass the same type for `{guard.source}` (always a list or always"
            " a tuple; a default tensor, such as a mask of zeros or ones, instead of"
            " None); or warm up with one call of each type"
        )


class ContainerShape(Recompile):
    """A list, tuple or dict has another length or other keys.

    ## Why
    Dynamo unrolls containers while tracing, so their length and keys become part of the
    graph.

    ## Bad
        self.past.append(h)          # one longer every call

    ## Good
        self.past[:, position] = h   # a preallocated buffer, written with index_copy_

    ## Fix safety
    A buffer has a maximum length: mask the part that is not filled yet.
    """

    code = "RC212"
    causes = ("length", "keys")
    cause_text = (
        "the contents of `{guard.source}` are unrolled while tracing, so its"
        " {guard.cause} is compiled in"
    )

    def changed(self, guard: Guard, group: EventGroup) -> str:
        what = "length" if guard.cause == "length" else "keys"
        return f"the {what} of `{guard.source}` changed ({values_seen(group)})"

    def remedy(self, guard: Guard, group: EventGroup) -> str:
        if len(group.data.get("path", (0, 0))) == 1:
            return (
                f"pass the same arguments to {group.compiled} in every call; where one"
                " is missing, pass a tensor or the default"
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
    Dynamo reads attributes while tracing. An int attribute of an nn.Module stays a
    constant; it never becomes dynamic.

    ## Bad
        self.calls += 1

    ## Good
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    ## Fix safety
    The values are the same. A tensor cannot decide a Python branch.
    """

    code = "RC213"
    causes = ("attribute",)
    changed_text = "the attribute `{guard.source}` changed ({seen})"
    cause_text = (
        "`{guard.source}` is a Python value that was compiled in as {guard.expected}"
    )

    def remedy(self, guard: Guard, group: EventGroup) -> str:
        name = guard.source.rsplit(".", 1)[-1]
        if self.per_value(guard):
            return (
                f"keep the attribute `{guard.source}` fixed: set it once before"
                f" compiling, or compile a separate module for each value of {name}; if"
                " it must change, warm up with each value"
            )
        return (
            f'make `{guard.source}` a tensor: self.register_buffer("{name}",'
            f" torch.tensor({guard.expected})) and update it in place; or update it"
            " outside the compiled function; to make int attributes of modules dynamic,"
            " set torch._dynamo.config.allow_unspec_int_on_nn_module = True"
        )

    def severity(self, group: EventGroup) -> Severity:
        # Int attributes of a module never become dynamic: each value recompiles.
        static = (
            "HINT: torch.compile considers integer attributes"
            in group.data["guard"].text
        )
        usual = super().severity(group)
        return "medium" if static and usual == "low" else usual


class GlobalValue(Recompile):
    """A global variable changes between calls.

    ## Why
    Dynamo reads globals while tracing and makes their values constants of the graph.

    ## Bad
        def f(x): return x * SCALE

    ## Good
        def f(x, scale): return x * scale

    ## Fix safety
    The values are the same.
    """

    code = "RC214"
    causes = ("global",)
    changed_text = "the global `{guard.source}` changed ({seen})"
    fix_text = (
        "pass `{guard.source}` as an argument, as a tensor if it changes often"
        " (torch.tensor({guard.expected})), instead of reading the global in the"
        " compiled function"
    )


class NewObject(Recompile):
    """A function, closure or other object is a new one in each call.

    ## Why
    Dynamo guards on the identity of functions and of objects whose contents it cannot
    inspect.

    ## Bad
        for x in data: run(x, lambda y: y + 1)

    ## Good
        def increment(y): return y + 1
        for x in data: run(x, increment)

    ## Fix safety
    The values are the same if the function does not depend on where it is created.
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
                f"remove the graph breaks: because of them torch compiles"
                f" {group.function} separately, once for each `{guard.source}`"
            )
        if guard.other in {"function", "code"}:
            return once
        return (
            f"{once}; if `{guard.source}` is an enum or a flag, each value gets its own"
            " graph: keep it fixed, or compile a separate function for each constant"
        )


class GlobalState(Recompile):
    """Gradient mode, autocast or other global state differs between calls.

    ## Why
    Torch's global state determines the graph, so each state gets its own.

    ## Bad
        model(x)
        with torch.no_grad(): model(x)

    ## Good
        # the same program, with one warm-up call in each mode

    ## Fix safety
    Nothing changes: both graphs stay in the cache.
    """

    code = "RC216"
    causes = ("global_state",)
    changed_text = "the global state `{guard.source}` differs between calls"
    cause_text = "torch's `{guard.source}` is part of what was compiled"
    fix_text = (
        "set `{guard.source}` to the same value around every call; if you need both"
        " (training and evaluation), warm up with one call in each, or compile a"
        " separate function for each"
    )


class TrainingFlag(Recompile):
    """module.train() and module.eval() alternate between calls.

    ## Why
    Dropout and batch norm behave differently, so each mode gets its own graph.

    ## Bad
        for step in range(n): model.train(step % 2 == 0); model(x)

    ## Good
        model.train(); model(x)      # warm up once in each mode
        model.eval(); model(x)

    ## Fix safety
    Expected: there are two graphs, and both stay in the cache.
    """

    code = "RC217"
    reference = torch_pages.MODULES
    causes = ("training",)
    changed_text = "`{guard.source}` flips between train() and eval()"
    cause_text = (
        "`{guard.source}` decides what dropout and batch norm do, so each mode is"
        " compiled apart"
    )
    fix_text = (
        "expected once per mode: warm up with one call in train() and one in eval(), or"
        " use two separate compiled modules, one for training and one for evaluation"
    )


class LearningRate(Recompile):
    """A learning rate that is a Python float changes.

    ## Why
    The settings in an optimizer's param_groups are Python values, and a scheduler
    changes them.

    ## Bad
        torch.optim.SGD(parameters, lr=0.1)

    ## Good
        torch.optim.SGD(parameters, lr=torch.tensor(0.1))

    ## Fix safety
    The steps are the same. Some schedulers convert a tensor back into a float.
    """

    code = "RC218"
    reference = torch_pages.RATES
    causes = ("learning_rate",)
    changed_text = (
        "the learning rate `{guard.source}` is a Python float that changes ({seen})"
    )
    fix_text = (
        "create the optimizer with a tensor: lr=torch.tensor(rate), on a GPU with"
        " capturable=True if the optimizer has that option; a float costs one recompile"
    )
