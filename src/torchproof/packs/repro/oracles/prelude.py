"""What every judge shares: a program made, compiled and called as the failing one was.

Comes in: what a candidate defines, the settings of a repro. Goes out: a verdict and one
sentence, printed as the last line.
"""

from __future__ import annotations

import collections.abc
import contextlib
import logging
import random
import sys

import torch

SAME, NONE, OTHER = 1, 0, 3
WORDS = {
    SAME: "FAILS AS STATED",
    NONE: "DOES NOT FAIL",
    OTHER: "FAILS IN ANOTHER WAY",
}


def seed_all(number):
    random.seed(number)
    torch.manual_seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number % 2**32)


def made(make, settings):
    """The function and its calls, anew, on the device that is asked for."""
    seed_all(settings["seed"])
    fn, calls = make()
    if settings["device"] != "cpu":
        fn, calls = (moved(value, settings["device"]) for value in (fn, calls))
    return fn, calls


def moved(value, device):
    if isinstance(value, torch.nn.Module):
        return value.to(device)
    if isinstance(value, torch.Tensor):
        there = value.to(device)
        again = there is not value and value.requires_grad
        return there.detach().requires_grad_() if again else there
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(moved(item, device) for item in value)
    return value


def compiled(fn, settings, **defaults):
    """As the settings say; `defaults` hold where they choose no backend."""
    if settings["as_written"]:
        return fn
    given = settings["compile"]
    chosen = {"backend", "mode", "options"} & set(given)
    return torch.compile(fn, **({} if chosen else defaults), **given)


@contextlib.contextmanager
def lighter(settings, defaults):
    """The same `defaults` for what the program compiles itself."""
    original = torch.compile

    def light(model=None, **given):
        chosen = {"backend", "mode", "options"} & set(given)
        return original(model, **({} if chosen else defaults), **given)

    if settings["as_written"] and defaults:
        torch.compile = light
    try:
        yield
    finally:
        torch.compile = original


def leaves(value):
    """Everything in nested containers that is none."""
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
    """One call; in training its loss and backward."""
    output = fn(**call) if isinstance(call, dict) else fn(*call)
    if train:
        loss_of(output).backward()
    return output


def loss_of(output):
    """The output's `.loss`, else the mean of its floating-point tensors."""
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
    """Every call in order; `after(index, output)` sees what each gave."""
    for index, call in enumerate(calls):
        if before_call is not None:
            before_call(original, index)
        if settings["train"]:
            forget_gradients(original, call)
        output = call_once(fn, call, settings["train"])
        if after is not None:
            after(index, output)


def forget_gradients(original, call):
    if isinstance(original, torch.nn.Module):
        original.zero_grad(set_to_none=True)
    for leaf in leaves(call):
        if isinstance(leaf, torch.Tensor):
            leaf.grad = None


def failure_in_eager(make, settings, before_call):
    """The error that eager raises, in one line; None where it runs."""
    try:
        with torch.compiler.set_stance("force_eager"):
            fn, calls = made(make, settings)
            call_all(fn, fn, calls, settings, before_call=before_call)
    except Exception as error:
        return one_line(error)
    return None


def run_compiled(make, settings, before_call, **defaults):
    """Compiles and calls it all; the error that was raised, or None."""
    try:
        with lighter(settings, defaults):
            fn, calls = made(make, settings)
            called = compiled(fn, settings, **defaults)
            call_all(called, fn, calls, settings, before_call=before_call)
    except Exception as error:
        return error
    return None


def otherwise(error, make, settings, before_call):
    """The verdict where a call raises and should not."""
    own = failure_in_eager(make, settings, before_call)
    if own is not None:
        return OTHER, f"it fails in eager: {own}"
    return OTHER, f"compiled it raises {one_line(error)}"


def one_line(error):
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 300 else text[:296] + " ..."


class Trace(logging.Handler):
    """Keeps what torch writes of each compilation, as TORCH_TRACE would."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        payload = getattr(record, "payload", None)
        self.records.append((record.metadata, "" if payload is None else payload))

    def artifacts(self, name):
        """Compile id and payload of every artifact of one name."""
        for metadata, payload in self.records:
            artifact = metadata.get("artifact")
            if isinstance(artifact, dict) and artifact.get("name") == name:
                yield compile_id(metadata), payload

    def named(self, name):
        """Compile id and content of every other record of one name."""
        for metadata, _ in self.records:
            if name in metadata:
                yield compile_id(metadata), metadata[name]


def compile_id(metadata):
    return f"{metadata.get('frame_id')}/{metadata.get('frame_compile_id')}"


@contextlib.contextmanager
def traced():
    handler, log = Trace(), logging.getLogger("torch.__trace")
    log.addHandler(handler)
    try:
        yield handler
    finally:
        log.removeHandler(handler)


def report_and_exit(verdict):
    """Says the verdict, as the last line, and ends the process with its code."""
    code, sentence = verdict
    sys.stderr.flush()
    print(f"{WORDS[code]}: {sentence}", flush=True)
    sys.exit(code)
