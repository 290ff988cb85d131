"""What all oracles share: building, compiling and calling the program under test.

An oracle defines `run_oracle(program, expected)`, which returns a verdict and one
sentence that explains it, or raises the error of compiled code.
"""

from __future__ import annotations

import collections.abc
import contextlib
import logging
import random
import sys

import torch

SAME, NONE, OTHER = 1, 0, 3  # exit codes
VERDICTS = {
    SAME: "FAILS AS STATED",
    NONE: "DOES NOT FAIL",
    OTHER: "FAILS IN ANOTHER WAY",
}


def seed_all(number):
    random.seed(number)
    torch.manual_seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number % 2**32)


class Program:
    """The program under test: `make` and `before_call` of a candidate."""

    def __init__(self, make, settings, before_call=None):
        self.make = make
        self.settings = settings
        self.before_call = before_call

    def build(self):
        """Returns a new function and its calls, on the device of the settings."""
        seed_all(self.settings["seed"])
        fn, calls = self.make()
        if self.settings["device"] != "cpu":
            fn, calls = (move_to(v, self.settings["device"]) for v in (fn, calls))
        return fn, calls

    def compile(self, fn, **defaults):
        """Compiles as the settings say; `defaults` apply if they choose no backend."""
        if self.settings["as_written"]:
            return fn
        options = self.settings["compile"]
        return torch.compile(fn, **with_defaults(options, defaults))

    def call_all(self, fn, original, calls, *, before_call=None, after=None):
        """Makes all calls in order and passes each output to `after(index, output)`."""
        before_call = before_call or self.before_call
        for index, call in enumerate(calls):
            if before_call is not None:
                before_call(original, index)
            if self.settings["train"]:
                clear_gradients(original, call)
            output = fn(**call) if isinstance(call, dict) else fn(*call)
            if self.settings["train"]:
                loss_of(output).backward()
            if after is not None:
                after(index, output)

    def eager_error(self):
        """Returns the error that eager raises, in one line; None if it runs."""
        eager = compile_defaults(self.settings, {"backend": "eager"})
        try:
            with eager, torch.compiler.set_stance("force_eager"):
                fn, calls = self.build()
                self.call_all(fn, fn, calls)
        except Exception as error:
            return one_line(error)
        return None

    def run_compiled(self, **defaults):
        """Compiles the program and makes all calls."""
        with compile_defaults(self.settings, defaults):
            fn, calls = self.build()
            self.call_all(self.compile(fn, **defaults), fn, calls)

    def compiled_error(self, **defaults):
        """Returns the error that compiled code raises; None if it runs."""
        try:
            self.run_compiled(**defaults)
        except Exception as error:
            return error
        return None


def with_defaults(options, defaults):
    chosen = {"backend", "mode", "options"} & set(options)
    return {**({} if chosen else defaults), **options}


@contextlib.contextmanager
def compile_defaults(settings, defaults):
    """Applies `defaults` to calls of torch.compile in the program itself."""
    original = torch.compile
    if settings["as_written"] and defaults:
        torch.compile = lambda model=None, **options: original(
            model, **with_defaults(options, defaults)
        )
    try:
        yield
    finally:
        torch.compile = original


def move_to(value, device):
    if isinstance(value, torch.nn.Module):
        return value.to(device)
    if isinstance(value, torch.Tensor):
        moved = value.to(device)
        was_leaf = moved is not value and value.requires_grad
        return moved.detach().requires_grad_() if was_leaf else moved
    if isinstance(value, dict):
        return {key: move_to(item, device) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(move_to(item, device) for item in value)
    return value


def leaves(value):
    """Yields everything inside nested containers."""
    if isinstance(value, collections.abc.Mapping):
        value = list(value.values())
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        value = [getattr(value, name) for name in value.__dataclass_fields__]
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def loss_of(output):
    """Returns the output's `.loss`, or the mean of its floating-point tensors."""
    if getattr(output, "loss", None) is not None:
        return output.loss
    means = [
        leaf.float().mean()
        for leaf in leaves(output)
        if isinstance(leaf, torch.Tensor)
        and leaf.is_floating_point()
        and leaf.requires_grad
    ]
    return torch.stack(means).mean()


def clear_gradients(original, call):
    if isinstance(original, torch.nn.Module):
        original.zero_grad(set_to_none=True)
    for leaf in leaves(call):
        if isinstance(leaf, torch.Tensor):
            leaf.grad = None


def one_line(error):
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 300 else text[:296] + " ..."


class Trace(logging.Handler):
    """Collects torch's structured log of each compilation, as TORCH_TRACE does."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        payload = getattr(record, "payload", None)
        self.records.append((record.metadata, "" if payload is None else payload))

    def artifacts(self, name):
        """Yields compile id and payload of each artifact of this name."""
        for metadata, payload in self.records:
            artifact = metadata.get("artifact")
            if isinstance(artifact, dict) and artifact.get("name") == name:
                yield compile_id(metadata), payload

    def named(self, name):
        """Yields compile id and content of each other record of this name."""
        for metadata, _ in self.records:
            if name in metadata:
                yield compile_id(metadata), metadata[name]


def compile_id(metadata):
    return f"{metadata.get('frame_id')}/{metadata.get('frame_compile_id')}"


@contextlib.contextmanager
def collect_trace():
    handler = Trace()
    log = logging.getLogger("torch.__trace")
    log.addHandler(handler)
    try:
        yield handler
    finally:
        log.removeHandler(handler)


def report_and_exit(run_oracle, program, expected):
    """Prints the verdict as the last line and exits with its code; eager has to run."""
    try:
        code, sentence = run_oracle(program, expected)
        in_eager = program.eager_error() if code == SAME else None
    except Exception as error:
        code, sentence = OTHER, f"compiled code raises {one_line(error)}"
        in_eager = program.eager_error()
    if in_eager is not None:
        code, sentence = OTHER, f"eager fails: {in_eager}"
    sys.stderr.flush()
    print(f"{VERDICTS[code]}: {sentence}", flush=True)
    sys.exit(code)
