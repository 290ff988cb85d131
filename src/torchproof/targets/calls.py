"""Loads a target, runs its calls in this process, and collects their answers.

Takes a job, returns a loaded target, and the answers of a pass over its calls as one
flat mapping.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil

from torchproof import torch_private
from torchproof.records import Frame, UserError, whose
from torchproof.targets import deferred_weights, live, overlay
from torchproof.targets.introspect import code_of, frame_of
from torchproof.targets.job import Job
from torchproof.targets.target import Loaded, keywords, load, raised
from torchproof.targets.workloads import WORKLOADS

Answers = dict[str, Any]
# Of larger tensors, only evenly spaced elements are compared.
_compared_elements = 2**24
# As many elements of an input tell one set of random numbers from another.
_SAMPLED_ELEMENTS = 4096


@dataclass(frozen=True)
class Opaque:
    """An output that contains nothing to compare."""

    type_name: str

    def __str__(self) -> str:
        return f"an output of type {self.type_name}"


def seed(number: int = 0) -> None:
    """Seeds every random generator."""
    import numpy
    import torch

    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


def resolved(job: Job) -> Job:
    """Applies the overlay; chooses the device and size of a workload.

    Raises `UserError` if the device is missing, the weights do not fit into memory, or
    the workload cannot run in the way that is asked for.
    Call it before the first `fresh`: later, the first model uses memory.
    """
    import torch

    if job.overlay:
        changed = overlay.compile_arguments(overlay.install(job.overlay))
        job = dataclasses.replace(job, compile={**job.compile, **changed})
    if job.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device on this machine")
    if job.target.kind != "workload":
        return job
    _assert_suits(job)
    device = job.device or ("cuda" if torch.cuda.is_available() else "cpu")
    size = job.size or WORKLOADS[job.target.where].size_on(device)
    _assert_room(job, size, device)
    return dataclasses.replace(job, device=device, size=size)


def fresh(job: Job) -> Loaded:
    """Seeds every random generator and calls the factory again.

    The job of a workload must be `resolved`.
    """
    import torch

    seed()
    if job.target.kind == "workload":
        arguments = {"size": job.size, "device": job.device, "train": job.train}
        if _is_shared(job):
            arguments["deferred"] = True
        loaded = load(job.target, {**arguments, **job.shape})
    else:
        loaded = _loaded(job)
        if job.device:
            loaded = _converted(loaded, device=job.device)
    if job.dtype:
        loaded = _converted(loaded, dtype=getattr(torch, job.dtype))
    if job.overlay:
        overlay.mark(overlay.install(job.overlay), loaded.fn, loaded.calls)
    return loaded


def _loaded(job: Job) -> Loaded:
    if job.target.kind == "live":
        return live.load(job.target)
    return load(job.target, job.shape, text_models=job.text_models)


def _is_shared(job: Job) -> bool:
    """Whether each rank creates only its share of the weights."""
    divides = job.in_shares and job.wrap not in (None, "ddp")
    return divides and "deferred" in keywords(job.target)


def _assert_suits(job: Job) -> None:
    """Raises `UserError` if FP8 weights are to be trained or converted."""
    if not WORKLOADS[job.target.where].fp8:
        return
    for flag, value in (("--train", job.train), ("--dtype", job.dtype)):
        if value:
            raise UserError(
                f"{flag}: {job.target.text} has FP8 weights, which have no gradients"
                " and no other dtype: use workload:gpt"
            )


def _assert_room(job: Job, size: str, device: str) -> None:
    """Raises `UserError` if the weights do not fit into memory."""
    import torch

    target, train = job.target, job.train
    workload = WORKLOADS[target.where]
    ranks = local = 1
    own = torch.cuda.current_device() if device == "cuda" else 0
    if job.on_rank:
        ranks, local, own = (
            int(os.environ[name])
            for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK")
        )
    needed = workload.sizes[size] * (2 if train else 1)
    if device == "cuda":
        free = torch.cuda.mem_get_info(own % torch.cuda.device_count())[0]
        needed *= 1 if workload.fp8 else 2
    else:
        free = psutil.virtual_memory().available
        needed *= (1 if workload.fp8 else 4) * local  # all ranks of a machine share it
    if _is_shared(job):
        needed //= ranks
    if needed > free:
        what = "weights and gradients" if train else "weights"
        what = f"share of {what}" if _is_shared(job) and device == "cuda" else what
        raise UserError(
            f"{target.text}, size {size}: its {what} need {needed / 2**30:.0f} GiB, but"
            f" {device} has {free / 2**30:.0f} GiB free: choose a smaller --size"
        )


def _converted(loaded: Loaded, **conversion: Any) -> Loaded:
    """Moves the target to a device, or converts its floating-point tensors."""
    import torch

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.nn.Module):
            deferred = "device" in conversion and deferred_weights.are_deferred(leaf)
            return leaf if deferred else leaf.to(**conversion)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        unchanged = "dtype" in conversion and not leaf.is_floating_point()
        moved = leaf if unchanged else leaf.to(**conversion)
        # Make it a leaf. Otherwise each backward would copy its gradient back.
        again = moved is not leaf and leaf.requires_grad
        return moved.detach().requires_grad_() if again else moved

    calls = [
        torch_private.trees.mapped(call, convert, objects=True) for call in loaded.calls
    ]
    return dataclasses.replace(loaded, fn=convert(loaded.fn), calls=calls)


def claims(fn: Any, what: str) -> bool:
    """Whether the class of a workload sets a flag; ignores a module's `__getattr__`."""
    return getattr(type(fn), what, False) is True


def compiles_itself(fn: Any, job: Job) -> bool:
    itself = job.as_written or claims(fn, "compiles_itself")
    return itself or torch_private.is_compiled(fn)


def trains(loaded: Loaded, job: Job) -> bool:
    """Whether torchproof runs a backward after each call."""
    return job.train and not claims(loaded.fn, "trains_itself")


def before(loaded: Loaded, index: int) -> None:
    if loaded.before_call is None:
        return
    try:
        loaded.before_call(loaded.fn, index)
    except Exception as error:
        raise raised(f"before_call failed at call {index}", error) from error


def each(
    loaded: Loaded, *, train: bool, prepare: Callable[[int], None] = lambda index: None
) -> Iterator[tuple[int, Any]]:
    """The calls in order, each without old gradients, and after its `before_call`."""
    for index, call in enumerate(loaded.calls):
        prepare(index)
        before(loaded, index)
        if train:
            forget_gradients(loaded.fn, call)
        yield index, call


def forget_gradients(fn: Any, call: Any) -> None:
    """Clears gradients, so that they do not add up over steps."""
    import torch

    if isinstance(fn, torch.nn.Module):
        fn.zero_grad(set_to_none=True)
    for tensor in torch_private.trees.tensors(call):
        tensor.grad = None


def step(fn: Callable[..., Any], call: Any, *, train: bool) -> Callable[[], Any]:
    """A call of `invoke` for a clock: without `train`, the clock sees `fn` alone."""
    if train:
        return functools.partial(invoke, fn, call, train=True)
    if isinstance(call, dict):
        return functools.partial(fn, **call)
    return functools.partial(fn, *call)


def invoke(fn: Callable[..., Any], call: Any, *, train: bool) -> Any:
    """Runs one call; with `train`, also its loss and backward."""
    output = fn(**call) if isinstance(call, dict) else fn(*call)
    if train:
        loss(output).backward()
    return output


def loss(output: Any) -> Any:
    """The output's `.loss`, or the mean of its floating-point tensors."""
    import torch

    if getattr(output, "loss", None) is not None:
        return output.loss
    leaves = [
        tensor.float().mean()
        for tensor in torch_private.trees.tensors(output)
        if tensor.is_floating_point() and tensor.requires_grad
    ]
    if not leaves:
        raise UserError(
            "--train: the output has no floating-point tensor with requires_grad"
        )
    return torch.stack(leaves).mean()


def function_of(loaded: Loaded) -> Frame:
    """The place of the target's function; of the factory if torch defines it."""
    code = code_of(getattr(loaded.fn, "_orig_mod", loaded.fn))
    if code is None or whose(code.co_filename) not in {"user", "library"}:
        return loaded.place
    return frame_of(code)


# -- answers ---------------------------------------------------------------------------


def answers(
    loaded: Loaded,
    fn: Callable[..., Any],
    *,
    train: bool,
    backward: bool | None = None,
    prepare: Callable[[int], None] = lambda index: None,
    step: Callable[[int, Any], Any] | None = None,
    exact: bool = False,
) -> Answers:
    """Runs all calls from a known state; returns outputs, gradients and changed inputs.

    Calls `fn`, and reads parameters and buffers from `loaded.fn`, the target that `fn`
    was made from. With `train`, runs a backward after each call, unless `backward` is
    False because `fn` runs its own. Calls `prepare(index)` right before each call, and
    `step(index, call)` instead of a plain call. Seeds each call differently, to detect
    code that ignores the seed. With `exact`, tensors are complete and stay on their
    device; otherwise the CPU gets a sample of large ones.
    """
    copied = _clone if exact else _copied
    collected: Answers = {}
    follows = train if backward is None else backward
    for index, call in each(loaded, train=train, prepare=seed):
        prepare(index)
        output = step(index, call) if step else invoke(fn, call, train=follows)
        where = f"call {index}: "
        collected |= of_call(where, output, call, fn=loaded.fn, copied=copied)
        if train:
            for name, gradient in _gradients(loaded.fn, call):
                collected |= comparable(f"{where}gradient of {name}", gradient, copied)
    for name, buffer in buffers(loaded.fn):
        collected |= comparable(f"buffer {name}", buffer, copied)
    return collected


def of_call(
    where: str,
    output: Any,
    call: Any,
    *,
    fn: Any = None,
    copied: Callable[[Any], Any] | None = None,
) -> Answers:
    """What one call returned, and its arguments as it left them."""
    outputs = dict(comparable(where + "output", output, copied))
    return {
        **(outputs or {where + "output": Opaque(type(output).__name__)}),
        **dict(comparable(where + "argument", call, copied)),
        **_forms(where + "output", output, call, fn),
    }


def inputs(loaded: Loaded) -> Answers:
    """Some elements of each argument and parameter of a target that did not run yet."""
    import torch

    collected: Answers = {}
    sampled = functools.partial(_copied, at_most=_SAMPLED_ELEMENTS)
    for index, call in enumerate(loaded.calls):
        label = f"call {index}: argument"
        collected |= comparable(label, call, sampled)
    if isinstance(loaded.fn, torch.nn.Module):
        for name, parameter in loaded.fn.named_parameters():
            # Others may not have their values yet, or not on this device.
            if type(parameter) is torch.nn.Parameter and not parameter.is_meta:
                collected[f"parameter {name}"] = sampled(parameter)
    return collected


def comparable(
    label: str, value: Any, copied: Callable[[Any], Any] | None = None
) -> Iterator[tuple[str, Any]]:
    """Copies of the comparable values; later calls may overwrite the originals."""
    import numpy
    import torch

    arrays = (numpy.ndarray, numpy.generic)
    for name, leaf in torch_private.trees.leaves(value, label):
        if isinstance(leaf, arrays) and leaf.dtype.kind in "bif":
            leaf = torch.from_numpy(numpy.array(leaf))
        if leaf is None or isinstance(leaf, (bool, int, float, complex, str)):
            yield name, leaf
        else:
            # Attributes other than tensors, such as a time, may differ between runs.
            for where, part in torch_private.trees.walk(leaf, name, objects=True):
                if isinstance(part, torch.Tensor):
                    yield where, (copied or _copied)(part)


def _forms(label: str, output: Any, call: Any, fn: Any) -> Answers:
    """Strides, `requires_grad` and shared memory of the output's tensors."""
    import torch

    outputs = dict(torch_private.trees.walk(output, label, objects=True))
    inputs = dict(torch_private.trees.walk(call, "argument", objects=True))
    if isinstance(fn, torch.nn.Module):
        inputs |= {f"parameter {name}": each for name, each in fn.named_parameters()}
        inputs |= {f"buffer {name}": each for name, each in fn.named_buffers()}
    forms = torch_private.comparison.forms_of(outputs, inputs)
    return {f"form of {name}": form for name, form in forms.items()}


def compare_at_most(elements: int | None) -> None:
    """Sets how many elements of a tensor to compare; None changes nothing."""
    global _compared_elements
    _compared_elements = elements or _compared_elements


def _clone(tensor: Any) -> Any:
    return _local(tensor.detach()).clone()


def _local(tensor: Any) -> Any:
    """The part of a distributed tensor that this rank has."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def _copied(tensor: Any, at_most: int | None = None) -> Any:
    if tensor.is_meta:
        raise UserError(
            "the target computes on the meta device, which has no values to compare"
            " and nothing to time: build it on cpu or cuda"
        )
    flat = _local(tensor.detach())
    at_most = at_most or _compared_elements
    if flat.numel() > at_most:
        step = -(-flat.numel() // at_most)
        flat = flat.reshape(-1)[::step]
    return flat.to("cpu", copy=True)


def _gradients(fn: Any, call: Any) -> Iterator[tuple[str, Any]]:
    import torch

    if isinstance(fn, torch.nn.Module):
        for name, parameter in fn.named_parameters():
            yield name, parameter.grad
    for name, leaf in torch_private.trees.leaves(call, "argument"):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_leaf:
            yield name, leaf.grad


def buffers(fn: Any) -> Iterator[tuple[str, Any]]:
    import torch

    if isinstance(fn, torch.nn.Module):
        yield from fn.named_buffers()


def amount(loaded: Loaded) -> tuple[float, str] | None:
    """Mean work per call in the target's own unit, such as (4096, "tokens")."""
    if loaded.call_work is None:
        return None
    each = [loaded.call_work(call) for call in loaded.calls]
    return sum(number for number, _ in each) / len(each), each[0][1]


def weights(loaded: Loaded) -> tuple[float, ...]:
    """How often each call is made, by `call_weight(call)` of the factory's file."""
    if loaded.call_weight is None:
        return (1.0,) * len(loaded.calls)
    found: list[float] = []
    for index, call in enumerate(loaded.calls):
        try:
            found.append(float(loaded.call_weight(call)))
        except Exception as error:
            raise raised(f"call_weight failed at call {index}", error) from error
        if not 0 <= found[-1] < math.inf:
            raise UserError(
                f"call_weight of call {index} is {found[-1]}, not 0 or more"
            )
    if not any(found):
        raise UserError("call_weight is 0 for every call: no request can be drawn")
    return tuple(found)


def host_copies(loaded: Loaded) -> str | None:
    """A warning if every step copies inputs from the CPU to the device."""
    import torch

    if not isinstance(loaded.fn, torch.nn.Module):
        return None
    homes = {str(p.device.type) for p in loaded.fn.parameters()} - {"cpu"}
    on_cpu = [
        name
        for name, leaf in torch_private.trees.leaves(loaded.calls, "argument")
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.ndim
    ]
    if not homes or not on_cpu:
        return None
    home = homes.pop()
    return (
        f"{len(on_cpu)} inputs are on the CPU and the weights on {home}: every step"
        " includes the copies, with every strategy; create the tensors of the calls on"
        f" {home} in the factory"
    )
