"""Torch's global switches are in the key of a recording, each and all of them."""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import torchproof
from torchproof.runtime.loading.precompiled_calls import switches
from torchproof.torch_private import global_switches

C: Any = torch._C
BACKENDS: Any = torch.backends
CUDA: Any = BACKENDS.cuda


def toggled(name: str, setter: str | None = None) -> Callable[[], Any]:
    """Flips a boolean of `torch._C`."""
    set_to = getattr(C, setter or name.replace("_get_", "_set_"), None)
    return lambda: set_to(not getattr(C, name)())  # type: ignore[misc]


def set_attribute(owner: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def toggled_attribute(owner: Any, name: str) -> Callable[[], None]:
    return lambda: setattr(owner, name, not getattr(owner, name))


def precision(backend: str, operation: str) -> Callable[[], None]:
    def flip() -> None:
        now = C._get_fp32_precision_getter(backend, operation)
        other = "ieee" if now == "tf32" else "tf32"
        C._set_fp32_precision_setter(backend, operation, other)

    return flip


def entered(context: Any) -> Callable[[], Any]:
    """Enters a context, which lasts as long as the function does."""
    return lambda: context.__enter__()


def other_engine() -> str:
    engines = BACKENDS.quantized.supported_engines
    return next(each for each in engines if each != BACKENDS.quantized.engine)


def disable_native() -> None:
    importlib.import_module("torch._native.registry")._filter_state._op_symbols.add("x")


SDP = ("flash", "mem_efficient", "math", "cudnn", "fa3", "overrideable")
# What changes each switch.
FLIPS: dict[str, Callable[[], Any]] = {
    "is_grad_enabled": lambda: torch.set_grad_enabled(False),
    "_is_fwd_grad_enabled": lambda: C._set_fwd_grad_enabled(False),
    "_is_multithreading_enabled": lambda: C._set_multithreading_enabled(False),
    "_is_view_replay_enabled": lambda: C._set_view_replay_enabled(True),
    "_is_grad_layout_enforcement_enabled": (
        lambda: C._set_grad_layout_enforcement_enabled(False)
    ),
    "is_anomaly_enabled": lambda: torch.autograd.set_detect_anomaly(True),
    "is_anomaly_check_nan_enabled": (
        lambda: torch.set_anomaly_enabled(False, check_nan=False)
    ),
    "is_autocast_cache_enabled": lambda: torch.set_autocast_cache_enabled(False),
    "get_default_dtype": lambda: torch.set_default_dtype(torch.float64),
    "get_num_threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "_get_deterministic_algorithms": lambda: torch.use_deterministic_algorithms(True),
    "_get_deterministic_algorithms_warn_only": (
        lambda: torch.use_deterministic_algorithms(False, warn_only=True)
    ),
    "_get_deterministic_fill_uninitialized_memory": toggled_attribute(
        torch.utils.deterministic, "fill_uninitialized_memory"
    ),
    **{
        f"_get_{kind}_sdp_enabled": toggled(
            f"_get_{kind}_sdp_enabled", f"_set_sdp_use_{kind}"
        )
        for kind in SDP
    },
    "_get_math_sdp_allow_fp16_bf16_reduction": (
        lambda: CUDA.allow_fp16_bf16_reduction_math_sdp(True)
    ),
    **{
        f"_get_cublas_allow_{kind}": toggled_attribute(CUDA.matmul, f"allow_{kind}")
        for kind in (
            *("fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction"),
            "fp16_accumulation",
        )
    },
    "_get_cpu_allow_fp16_reduced_precision_reduction": toggled(
        "_get_cpu_allow_fp16_reduced_precision_reduction"
    ),
    "_get_blas_preferred_backend": (
        lambda: C._set_blas_preferred_backend(C._BlasBackend.Cublaslt)
    ),
    "_get_linalg_preferred_backend": (
        lambda: C._set_linalg_preferred_backend(C._LinalgBackend.Cusolver)
    ),
    "_get_rocm_fa_preferred_backend": (
        lambda: C._set_rocm_fa_preferred_backend(C._ROCmFABackend.AOTriton)
    ),
    "_get_sm_carveout_experimental": lambda: C._set_sm_carveout_experimental(8),
    "_get_qengine": set_attribute(BACKENDS.quantized, "engine", other_engine()),
    "_get_nnpack_enabled": lambda: BACKENDS.nnpack.set_flags(False),
    "_check_sparse_tensor_invariants": (
        torch.sparse.check_sparse_tensor_invariants.enable
    ),
    "_get_torch_function_state": entered(C.DisableTorchFunction()),
    "_get_dtensor_allow_implicit_replication": (
        lambda: C._set_dtensor_allow_implicit_replication(True)
    ),
    "cudnn.enabled": toggled_attribute(BACKENDS.cudnn, "enabled"),
    "cudnn.deterministic": toggled_attribute(BACKENDS.cudnn, "deterministic"),
    "cudnn.benchmark": toggled_attribute(BACKENDS.cudnn, "benchmark"),
    "cudnn.benchmark_limit": set_attribute(BACKENDS.cudnn, "benchmark_limit", 3),
    "cudnn.depthwise_kernel": set_attribute(
        BACKENDS.cudnn, "depthwise_kernel", "cudnn"
    ),
    "miopen.immediate": toggled_attribute(BACKENDS.miopen, "immediate"),
    "mkldnn.enabled": toggled_attribute(BACKENDS.mkldnn, "enabled"),
    "mkldnn.deterministic": toggled_attribute(BACKENDS.mkldnn, "deterministic"),
    **{
        f"{backend}.{operation}.fp32_precision": precision(backend, operation)
        for backend, operation in global_switches._PRECISIONS
    },
    "opt_einsum": toggled_attribute(BACKENDS.opt_einsum, "enabled"),
    "autocast.cpu": lambda: torch.set_autocast_enabled("cpu", True),
    "autocast.cpu.dtype": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "autocast.cuda": lambda: torch.set_autocast_enabled("cuda", True),
    "autocast.cuda.dtype": lambda: torch.set_autocast_dtype("cuda", torch.bfloat16),
    "default_device": lambda: torch.set_default_device("meta"),
    "sdp_priority_order": lambda: C._set_sdp_priority_order([2, 1, 0, 3, 4]),
    "flush_denormal": lambda: torch.set_flush_denormal(True),
    "mha.fastpath": lambda: BACKENDS.mha.set_fastpath_enabled(False),
    "flash_attention_impl": lambda: setattr(
        importlib.import_module("torch.nn.attention._registry"),
        "_FLASH_ATTENTION_ACTIVE",
        ("FA4", None),
    ),
    "python_native": disable_native,
    "numpy.errors": lambda: numpy.seterr(divide="raise"),
    "cublas_workspace_size": lambda: CUDA.cublas_workspace_size(1 << 20),
    "cublasLt_workspace_size": lambda: CUDA.cublaslt_workspace_size(1 << 20),
    "is_inference_mode_enabled": entered(torch.inference_mode()),
}
NOT_FLIPPED = {"_get_default_device": "only `set_default_tensor_type` changes it"}
# Torch refuses to set these without CUDA.
NEED_CUDA = {"_get_blas_preferred_backend", "_get_linalg_preferred_backend"}
if not torch.cuda.is_available():
    NOT_FLIPPED |= dict.fromkeys(NEED_CUDA, "needs CUDA")
for value in (True, False):
    try:
        C._set_cpu_allow_fp16_reduced_precision_reduction(value)
    except RuntimeError as error:  # the processor has no arithmetic of float16
        NOT_FLIPPED["_get_cpu_allow_fp16_reduced_precision_reduction"] = str(error)


def in_child(work: Callable[[], Any]) -> Any:
    """Runs it in a forked child: some switches cannot be set back."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=lambda: send.send(work()))
    child.start()
    send.close()
    try:
        return receive.recv()
    finally:
        child.join()


def flipped() -> dict[str, Any]:
    """The switches that differ after each flip, one after the other."""
    warnings.simplefilter("ignore")
    names, found, kept = global_switches.names(), {}, []
    for name, flip in FLIPS.items():
        if name not in names or name in NOT_FLIPPED:
            continue
        before, unchanged = global_switches.values(), global_switches.Unchanged()
        is_still = unchanged.check()
        kept.append(flip())  # some last as long as an object does
        after = global_switches.values()
        rows = zip(names, before, after, strict=True)
        is_seen = is_still and not unchanged.check()
        found[name] = [row for row, a, b in rows if a != b] if is_seen else []
    return found


def test_every_switch_changes_the_key() -> None:
    found = in_child(flipped)
    assert not [name for name, rows in found.items() if name not in rows]
    assert {*found} == {*global_switches.names()} - NOT_FLIPPED.keys()


def test_a_switch_that_changes_is_seen_and_its_recording_kept() -> None:
    def step(x: Tensor) -> Tensor:
        raises = numpy.geterr()["divide"] == "raise"
        return x * (2.0 + raises) * (3.0 + CUDA.flash_sdp_enabled())

    graphed, x = torchproof.graph(step), torch.ones(3)
    for _ in range(2):
        for change in (numpy.errstate(divide="raise"), sdpa_kernel(SDPBackend.MATH)):
            with change:
                assert torch.equal(graphed(x), step(x))
            assert torch.equal(graphed(x), step(x))
    status = graphed.status()
    assert (status.recordings, status.replays, status.stops) == (3, 8, ())


def test_the_dtype_of_autocast_counts_while_it_is_off() -> None:
    def step(x: Tensor) -> Tensor:
        return x.to(torch.get_autocast_dtype("cpu"))

    graphed, x = torchproof.graph(step), torch.ones(3)
    for dtype in (None, torch.float16, torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype, enabled=False):
            for _ in range(2):
                assert graphed(x).dtype is step(x).dtype


# -- what torch can set ----------------------------------------------------------------

# What is no row of the same name.
EXPLAINED = {
    # Of torch.backends: rows of another name.
    "torch.backends.fp32_precision",
    *("cudnn.fp32_precision", "mkldnn.fp32_precision", "cuda.matmul.fp32_precision"),
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_accumulation",
    *("cuda.enable_flash_sdp", "cuda.enable_mem_efficient_sdp"),
    *("cuda.enable_math_sdp", "cuda.enable_cudnn_sdp"),
    "cuda.allow_fp16_bf16_reduction_math_sdp",
    *("cuda.preferred_linalg_library", "cuda.preferred_blas_library"),
    "cuda.preferred_rocm_fa_library",
    *("cudnn.set_flags", "mkldnn.set_flags", "miopen.set_flags", "nnpack.set_flags"),
    *("opt_einsum.set_flags", "mha.set_fastpath_enabled", "quantized.engine"),
    *("python_native.enable_operations", "python_native.disable_operations"),
    *("python_native.enable_dispatch_keys", "python_native.disable_dispatch_keys"),
    # There is a row for each backend and operation; reading these may raise.
    *("cudnn.allow_tf32", "mkldnn.allow_tf32", "cuda.matmul.allow_tf32"),
    # Rows only with a GPU.
    *("cuda.cublas_workspace_size", "cuda.cublaslt_workspace_size"),
    "cuda.blas_workspace_size",
    # Read only, the size of a cache, or not on Linux.
    *("quantized.supported_engines", "xnnpack.enabled", "python_native.available_dsls"),
    *("python_native.all_dsls", "cuda.cufft_plan_cache", "mps.fp32_precision"),
    # Setters of torch: rows.
    *("set_anomaly_enabled", "set_autocast_cache_enabled", "set_autocast_dtype"),
    *("set_autocast_enabled", "set_default_device", "set_default_dtype"),
    *("set_default_tensor_type", "set_deterministic_debug_mode", "set_num_threads"),
    *("set_float32_matmul_precision", "set_flush_denormal", "set_grad_enabled"),
    # Deprecated: the functions with a device.
    *("set_autocast_cpu_dtype", "set_autocast_cpu_enabled", "set_autocast_gpu_dtype"),
    *("set_autocast_ipu_dtype", "set_autocast_ipu_enabled", "set_autocast_xla_dtype"),
    "set_autocast_xla_enabled",
    # They do not change what is computed; recordings handle random states.
    *("set_num_interop_threads", "set_printoptions", "set_rng_state"),
    "set_warn_always",
    # Pairs of `_get_` and `_set_` in torch._C: rows of another name.
    *("_get_cudnn_benchmark", "_get_cudnn_depthwise_kernel", "_get_cudnn_enabled"),
    *("_get_cudnn_deterministic", "_get_miopen_immediate", "_get_mkldnn_enabled"),
    *("_get_mkldnn_deterministic", "_get_sdp_priority_order"),
    # There is a row for each backend and operation; reading these may raise.
    *("_get_cublas_allow_tf32", "_get_cudnn_allow_tf32", "_get_onednn_allow_tf32"),
    "_get_float32_matmul_precision",
    # Warnings, TorchScript, and facts of one tensor or thread.
    *("_get_autograd_fallback_mode", "_get_backcompat_broadcast_warn"),
    *("_get_backcompat_keepdim_warn", "_get_warnAlways", "_get_graph_exec_group"),
    *("_get_graph_executor_optimize", "_get_value_trace", "_get_tensor_metadata"),
    "_get_thread_name",
    # Under a mode or `torch.jit.trace`, the step itself runs.
    *("_get_dispatch_mode", "_get_tracing_state"),
}
_SETS = re.compile("^(enable|disable|set|allow|preferred)_|_size$")


def backend_modules() -> Iterator[tuple[str, Any]]:
    for each in pkgutil.iter_modules(BACKENDS.__path__):
        if not each.name.startswith("_") and each.name != "xeon":
            yield each.name, importlib.import_module(f"torch.backends.{each.name}")


def settable() -> Iterator[str]:
    """The names of everything in torch that a program can set."""
    yield from (name for name in dir(torch) if name.startswith("set_"))
    pairs = {f"_get_{name[5:]}" for name in dir(C) if name.startswith("_set_")}
    yield from pairs & {*dir(C)}
    for backend, module in backend_modules():
        for name, flag in vars(type(module)).items():
            if hasattr(type(flag), "__set__") and not name.startswith("__"):
                yield f"{backend}.{name}"
        inside = vars(getattr(module, "m", module))
        for name, value in inside.items():
            is_setter = inspect.isfunction(value) and _SETS.search(name)
            if is_setter and value.__module__.startswith("torch.backends."):
                yield f"{backend}.{name}"
    text = inspect.getsource(CUDA.cuBLASModule.__setattr__)
    yield from (f"cuda.matmul.{name}" for name in re.findall(r'name == "(\w+)"', text))
    yield "torch.backends.fp32_precision"


def test_everything_that_can_be_set_is_a_row_or_explained() -> None:
    assert {*settable()} - {*global_switches.names()} - EXPLAINED == set()


# -- the precision of float32 products -------------------------------------------------


@pytest.fixture(params=["one backend", "all backends"])
def mixed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set by the newer interface, after which the older one raises."""
    before = global_switches.read_precision()
    torch.set_float32_matmul_precision("highest")
    owner = CUDA.matmul if request.param == "one backend" else BACKENDS
    owner.fp32_precision = CUDA.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError):
        torch.get_float32_matmul_precision()
    yield
    BACKENDS.fp32_precision = CUDA.matmul.fp32_precision = "none"
    global_switches.apply_precision(before)
    torch.get_float32_matmul_precision()


def test_a_precision_is_read_and_applied_by_either_interface(mixed: None) -> None:
    """Here, in packs and in children."""
    mixed_now = global_switches.read_precision()
    assert "tf32" in global_switches.precision_name()
    assert "tf32" in switches()["precision of float32 products"]
    settings = pickle.loads(pickle.dumps(global_switches.process_settings()))
    torch.set_float32_matmul_precision("medium")
    other = global_switches.read_precision()
    assert other != mixed_now and global_switches.precision_name() == "medium"
    global_switches.apply_settings(settings)
    assert global_switches.read_precision() == mixed_now


def test_a_step_is_recorded_and_a_model_compiled_under_any_precision(
    mixed: None,
) -> None:
    graphed = torchproof.graph(nn.Linear(3, 3))
    for _ in range(2):
        graphed(torch.randn(2, 3))
    assert graphed.status().replays == 2 and graphed.falls_back == []
    model = torchproof.compile(nn.ReLU(), backend="eager", deadline=60)
    x = torch.randn(2)
    assert torch.equal(model(x), x.relu())
    status = torchproof.status(model)
    assert (status.compiled_calls, status.fallbacks) == (1, ())
