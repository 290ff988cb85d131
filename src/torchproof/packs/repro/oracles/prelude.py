"""Functions that all oracles share: build, compile and call the program under test.

Takes the `make` function of a candidate and the settings of a repro. The verdict is
printed as the last line, with one sentence that explains it.
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


def build(make, settings):
    """Returns a new function and its calls, on the device of the settings."""
    seed_all(settings["seed"])
    fn, calls = make()
    if settings["device"] != "cpu":
        fn, calls = (move_to(value, settings["device"]) for value in (fn, calls))
    return fn, calls


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


def compile_fn(fn, settings, **defaults):
    """Compiles as the settings say; `defaults` apply if they choose no backend."""
    if settings["as_written"]:
        return fn
    options = settings["compile"]
    chosen = {"backend", "mode", "options"} & set(options)
    return torch.compile(fn, **({} if chosen else defaults), **options)


@contextlib.contextmanager
def compile_defaults(settings, defaults):
    """Applies `defaults` to calls of torch.compile in the program itself."""
    original = torch.compile

    def compile_with_defaults(model=None, **options):
        chosen = {"backend", "mode", "options"} & set(options)
        return original(model, **({} if chosen else defaults), **options)

    if settings["as_written"] and defaults:
        torch.compile = compile_with_defaults
    try:
        yield
    finally:
        torch.compile = original


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


def call_once(fn, call, train):
    """Makes one call; in training also computes its loss and runs backward."""
    output = fn(**call) if isinstance(call, dict) else fn(*call)
    if train:
        loss_of(output).backward()
    return output


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


def call_all(fn, original, calls, settings, *, before_call=None, after=None):
    """Makes all calls in order and passes each output to `after(index, output)`."""
    for index, call in enumerate(calls):
        if before_call is not None:
            before_call(original, index)
        if settings["train"]:
            clear_gradients(original, call)
        output = call_once(fn, call, settings["train"])
        if after is not None:
            after(index, output)


def clear_gradients(original, call):
    if isinstance(original, torch.nn.Module):
        original.zero_grad(set_to_none=True)
    for leaf in leaves(call):
        if isinstance(leaf, torch.Tensor):
            leaf.grad = None


def eager_error(make, settings, before_call):
    """Returns the error that eager raises, in one line; None if it runs."""
    try:
        with torch.compiler.set_stance("force_eager"):
            fn, calls = build(make, settings)
            call_all(fn, fn, calls, settings, before_call=before_call)
    except Exception as error:
        return one_line(error)
    return None


def run_compiled(make, settings, before_call, **defaults):
    """Compiles the program and makes all calls; returns the error raised, or None."""
    try:
        with compile_defaults(settings, defaults):
            fn, calls = build(make, settings)
            compiled = compile_fn(fn, settings, **defaults)
            call_all(compiled, fn, calls, settings, before_call=before_call)
    except Exception as error:
        return error
    return None


def unexpected_error(error, make, settings, before_call):
    """Returns the verdict for a call that raises although the failure is no error."""
    in_eager = eager_error(make, settings, before_call)
    if in_eager is not None:
        return OTHER, f"eager fails too: {in_eager}"
    return OTHER, f"compiled code raises {one_line(error)}"


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


def report_and_exit(verdict):
    """Prints the verdict as the last line and exits with its code."""
    code, sentence = verdict
    sys.stderr.flush()
    print(f"{VERDICTS[code]}: {sentence}", flush=True)
    sys.exit(code)
