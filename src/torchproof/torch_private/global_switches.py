"""Torch's global switches as one tuple, which is equal while none of them changes.

`values` is a part of the key of each recording: a recording was made under certain
switches and serves calls under the same ones. `Unchanged` compares them in less time.
To add a switch, add a row to `_rows`; the properties of `torch.backends` are rows
already.

`read_precision` and `apply_precision` are the precision of float32 products. Torch has
two interfaces for it, and `torch.get_float32_matmul_precision` raises after a program
has used the other one, so nothing else calls it.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy
import torch

from torchproof.records import Namespace, TorchConfig
from torchproof.torch_private import contract, dispatch_modes

Reader = Callable[[], Hashable]
Precision = tuple[tuple[str, str], ...]

# Functions without arguments that return a value which can be hashed.
_GETTERS = """
    is_grad_enabled is_inference_mode_enabled _is_fwd_grad_enabled
    _is_multithreading_enabled _is_view_replay_enabled
    _is_grad_layout_enforcement_enabled is_anomaly_enabled is_anomaly_check_nan_enabled
    is_autocast_cache_enabled get_default_dtype _get_default_device get_num_threads
    _get_deterministic_algorithms _get_deterministic_algorithms_warn_only
    _get_deterministic_fill_uninitialized_memory
    _get_flash_sdp_enabled _get_mem_efficient_sdp_enabled _get_math_sdp_enabled
    _get_cudnn_sdp_enabled _get_fa3_sdp_enabled _get_overrideable_sdp_enabled
    _get_math_sdp_allow_fp16_bf16_reduction
    _get_cublas_allow_fp16_reduced_precision_reduction
    _get_cublas_allow_bf16_reduced_precision_reduction
    _get_cublas_allow_fp16_accumulation _get_cpu_allow_fp16_reduced_precision_reduction
    _get_blas_preferred_backend _get_linalg_preferred_backend
    _get_rocm_fa_preferred_backend _get_sm_carveout_experimental
    _get_qengine _get_nnpack_enabled _check_sparse_tensor_invariants
    _get_torch_function_state _get_dtensor_allow_implicit_replication
"""
# Torch raises if a program sets it by one interface and reads it by the other.
_IN_PRECISION = "allow_tf32"
_DEVICES = ("cpu", "cuda")
_OPERATIONS = ("all", "matmul", "conv", "rnn")
_PRECISIONS = (
    ("generic", "all"),
    *(("cuda", operation) for operation in _OPERATIONS),
    *(("mkldnn", operation) for operation in _OPERATIONS),
)
_DENORMAL = 5e-324


def values() -> tuple[Hashable, ...]:
    """The values of all switches, in the order of `names`."""
    return tuple(map(operator.call, _readers()))


def names() -> tuple[str, ...]:
    return tuple(_table())


class Unchanged:
    """Whether the switches are what they were when this was made: `check()`.

    One guard of Dynamo compares many of them at once.
    """

    def __init__(self) -> None:
        guard = _guard()
        self._guard: Callable[[], bool] = (lambda: True) if guard is None else guard
        self._read = _readers() if guard is None else _unguarded()
        self._then = tuple(map(operator.call, self._read))

    def check(self) -> bool:
        return self._guard() and tuple(map(operator.call, self._read)) == self._then


# The switches that Dynamo's guard of the global state compares.
_GUARDED = {
    *("is_grad_enabled", "get_default_dtype", "get_num_threads"),
    *("is_autocast_cache_enabled", "_get_torch_function_state"),
    *("_get_deterministic_algorithms", "_get_deterministic_algorithms_warn_only"),
    *("autocast.cpu", "autocast.cuda"),  # their dtypes only while they are on
    "_get_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_bf16_reduced_precision_reduction",
}


def _guard() -> Callable[[], bool] | None:
    if contract.missing("guard of the global state"):
        return None
    from torch._C._dynamo.guards import GlobalStateGuard

    check: Callable[[], bool] = GlobalStateGuard().check
    return check


@functools.cache
def _unguarded() -> tuple[Reader, ...]:
    return tuple(read for name, read in _table().items() if name not in _GUARDED)


@functools.cache
def _readers() -> tuple[Reader, ...]:
    return tuple(_table().values())


@functools.cache
def _table() -> dict[str, Reader]:
    return dict(_rows())


def _rows() -> Iterator[tuple[str, Reader]]:
    """The name and the reader of each switch that the installed torch has."""
    for name in _GETTERS.split():
        if (getter := getattr(torch._C, name, None)) is not None:
            yield name, getter
    yield from _backend_properties()
    for pair in _PRECISIONS:
        yield ".".join((*pair, "fp32_precision")), functools.partial(_fp32, *pair)
    yield "opt_einsum", functools.partial(_opt_einsum, *_opt_einsum_namespaces())
    for device in _DEVICES:
        enabled = functools.partial(torch.is_autocast_enabled, device)
        yield f"autocast.{device}", enabled
        dtype = functools.partial(torch.get_autocast_dtype, device)
        yield f"autocast.{device}.dtype", dtype
    yield "default_device", dispatch_modes.default_device
    yield "sdp_priority_order", _sdp_priority_order
    yield "flush_denormal", _flushes_denormals
    yield "mha.fastpath", _entry("torch.backends.mha", "_is_fastpath_enabled")
    yield (
        "flash_attention_impl",
        _entry("torch.nn.attention._registry", "_FLASH_ATTENTION_ACTIVE"),
    )
    if (state := _python_native_filters()) is not None:
        yield "python_native", functools.partial(_filters, state)
    if torch.cuda.is_available():
        for library in ("", "Lt"):
            getter = getattr(torch._C, f"_cuda_getCublas{library}WorkspaceSize", None)
            if getter is not None:
                yield f"cublas{library}_workspace_size", getter
    yield "numpy.errors", _numpy_errors


def _backend_properties() -> Iterator[tuple[str, Reader]]:
    """The flags that are properties, such as `torch.backends.cudnn.benchmark`.

    The precisions are rows of their own, because some of these properties are wrong:
    one for mkldnn sets the flag of all backends.
    """
    modules: Namespace = {
        name: module
        for name, module in list(sys.modules.items())
        if name.startswith("torch.backends.")
    }
    for path, module in modules.items():
        for name, flag in vars(type(module)).items():
            is_precision = name in (_IN_PRECISION, "fp32_precision")
            if isinstance(flag, torch.backends.ContextProp) and not is_precision:
                yield f"{path.removeprefix('torch.backends.')}.{name}", flag.getter


_fp32: Callable[[str, str], str] = torch._C._get_fp32_precision_getter


def _entry(module: str, name: str) -> Reader:
    """Reads a global of a module that torch may import later."""
    modules = sys.modules

    def read() -> Hashable:
        found = modules.get(module)
        return None if found is None else found.__dict__.get(name)

    return read


def _opt_einsum_namespaces() -> tuple[Namespace, Namespace]:
    """Where an assignment puts the flags, and where `set_flags` does."""
    module: Any = torch.backends.opt_einsum
    return vars(module), vars(getattr(module, "m", module))


def _opt_einsum(own: Namespace, inner: Namespace) -> Hashable:
    return (
        own.get("enabled"),
        own.get("strategy"),
        inner.get("enabled"),
        inner.get("strategy"),
    )


def _sdp_priority_order() -> Hashable:
    """Lets torch choose the order for this GPU first, as the first attention would.

    Otherwise the order changes during the first call, and the second one is recorded
    again. An order that a program has set stays.
    """
    global _sdp_order_is_chosen
    if not _sdp_order_is_chosen and _may_launch():
        _sdp_order_is_chosen = True
        example = torch.empty(1, 1, 8, 8, device="cuda", dtype=torch.float16)
        torch._fused_sdp_choice(example, example, example)
    return tuple(torch._C._get_sdp_priority_order())


_sdp_order_is_chosen = False


def _may_launch() -> bool:
    return torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing()


def _flushes_denormals() -> bool:
    """Torch sets this flag of the processor, but has no function to read it."""
    return _DENORMAL * 1.0 == 0.0


def _python_native_filters() -> Any:
    registry = sys.modules.get("torch._native.registry")
    return getattr(registry, "_filter_state", None)


_FILTERS = operator.attrgetter("_dsl_names", "_op_symbols", "_dispatch_keys")


def _filters(state: Any) -> Hashable:
    filters = _FILTERS(state)
    return tuple(map(frozenset, filters)) if any(filters) else None


def _numpy_errors() -> Hashable:
    """How numpy handles errors, read again only after `seterr`: reading takes long."""
    global _numpy_last
    if _NUMPY_STATE is None:
        return _read_numpy_errors()
    state = _NUMPY_STATE.get(None)
    last, errors = _numpy_last
    if last is not state or errors is None:
        errors = _read_numpy_errors()
        _numpy_last = state, errors
    return errors


# A new object after each `seterr`, in newer versions of numpy.
_NUMPY_STATE: Any = getattr(
    getattr(getattr(numpy, "_core", None), "umath", None), "_extobj_contextvar", None
)
_numpy_last: tuple[Any, Hashable] = (None, None)


def _read_numpy_errors() -> Hashable:
    modes = tuple(numpy.geterr().values())
    is_called = "call" in modes or "log" in modes
    return (modes, numpy.geterrcall()) if is_called else modes


# -- the precision of float32 products -------------------------------------------------


def read_precision() -> Precision:
    """The precision of each backend and operation, and torch's name for the whole.

    The name is missing if a program has set parts of it by the newer interface.
    """
    parts = tuple(("/".join(pair), _fp32(*pair)) for pair in _PRECISIONS)
    try:
        return ("", torch.get_float32_matmul_precision()), *parts
    except RuntimeError:
        return parts


def apply_precision(precision: Precision) -> None:
    """Sets what `read_precision` has read, possibly in another process."""
    if precision[0][0]:  # the name is one that contradicts the parts
        torch.set_float32_matmul_precision("highest")
    for name, value in precision:
        if not name:
            torch.set_float32_matmul_precision(value)
        else:
            backend, _, operation = name.partition("/")
            if _fp32(backend, operation) != value:
                torch._C._set_fp32_precision_setter(backend, operation, value)


def precision_name() -> str:
    """The precision in words: "high", or each part where that name is not defined."""
    first, *rest = read_precision()
    if not first[0]:
        return first[1]
    return ", ".join(f"{name}={value}" for name, value in (first, *rest))


# -- what another process of this program needs ----------------------------------------

# Process state that changes what a model computes, its code or its speed.
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "determinism": (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    "precision": (read_precision, apply_precision),
}


def process_settings() -> TorchConfig:
    return {name: read() for name, (read, _) in _SETTINGS.items()}


def apply_settings(settings: TorchConfig) -> None:
    for name, (read, write) in _SETTINGS.items():
        if read() != settings[name]:
            write(settings[name])
