"""Counts what a target runs in eager, and floating-point operations by their type.

Uses the formulas of `torch.utils.flop_counter`: a multiplication and an addition are
two operations, and only products of matrices, convolutions and attention count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from torchproof.measure.replies import Operations
from torchproof.torch_private import TorchDispatchMode, trees

_TF32_CAPABILITY = 8  # Ampere
# Namespaces whose operations do no arithmetic worth counting, beside those below.
_LIGHT = {"aten", "prim", "prims", "profiler", "c10d", "_c10d_functional"}
# Operations of aten as costly as those with a formula.
_HEAVY = re.compile(
    r"mm(_|$)|matmul|^(add)?mv$|^v?dot$|conv(olution|\d|_|$)|attention"
    r"|transformer_encoder|(^|_)linear(_|$)|_trilinear|(cudnn|mkldnn|miopen)_rnn"
    r"|^(quantized_)?(lstm|gru)|cdist|_fft_|cholesky"
    r"|linalg_\w*(eig|inv|lu_|qr|solve|svd|lstsq)"
)
# Operations whose formula torch lacks in some versions, and one that has the same.
_SAME_FORMULA = {
    "_scaled_dot_product_flash_attention_for_cpu": (
        "_scaled_dot_product_flash_attention"
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        "_scaled_dot_product_flash_attention_backward"
    ),
}


def count(run: Callable[[], Any], calls: int) -> Operations:
    """Runs once, in eager, and returns the operations per call."""
    counter = OperationCounter()
    with counter:
        run()
    return Operations(
        by_type={name: n / calls for name, n in sorted(counter.by_type.items())},
        devices=tuple(sorted(counter.devices)),
        not_counted=tuple(sorted(counter.not_counted)),
    )


class OperationCounter(TorchDispatchMode):
    """Adds up the operations of everything that runs, backward included.

    `FlopCounterMode` runs both branches of a `cond`, does not run Triton kernels, and
    tells neither types nor what it could not count.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.count = self.to_host = 0  # operations, and copies from a GPU to the host
        self.by_type: Counter[str] = Counter()
        self.devices: set[str] = set()
        self.not_counted: set[str] = set()
        self._formulas = dict(FlopCounterMode(display=False).flop_registry)
        aten = torch.ops.aten
        for name, like in _SAME_FORMULA.items():
            same = self._formulas[getattr(aten, like)]
            self._formulas.setdefault(getattr(aten, name), same)
        for name, formula in {"_grouped_mm": _grouped}.items():
            self._formulas.setdefault(getattr(aten, name), formula)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        packet = getattr(func, "overloadpacket", func)  # a higher-order one has none
        formula = self._formulas.get(packet)
        if formula is None and packet is not func:
            with self:
                output = func.decompose(*args, **kwargs)
            if output is not NotImplemented:
                return output
        output = func(*args, **kwargs)
        self.count += 1
        self.to_host += _reaches_host(func, args, output)
        if formula is None:
            if _is_heavy(func):
                self.not_counted.add(func.name())
            return output
        try:
            operations = formula(*args, **kwargs, out_val=output)
        except Exception:  # the formula fails, not the call
            self.not_counted.add(func.name())
        else:
            self._add(packet, operations, args)
        return output

    def _add(self, packet: Any, operations: int, args: Any) -> None:
        tensor = next(iter(trees.tensors(args)), None)
        if tensor is None or not (tensor.is_floating_point() or tensor.is_complex()):
            return
        self.by_type[_type_of(tensor, str(packet))] += operations
        self.devices.add(str(tensor.device))


def _reaches_host(func: Any, args: Any, result: Any) -> bool:
    """Whether the host waits for a value from the GPU: `.item()`, `.cpu()`, a copy."""
    if not any(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in args):
        return False
    name = str(func)
    copies = name.startswith(("aten._to_copy", "aten.copy_"))
    if copies and result.device.type == "cpu":
        return True
    return name.startswith("aten._local_scalar_dense")


def _grouped(a: Any, b: Any, /, *args: Any, **kwargs: Any) -> int:
    """Products of groups of rows, or of columns of `b` if that has two dimensions."""
    groups = a.shape[0] if a.ndim == 3 and b.ndim == 2 else 1
    return int(2 * a.numel() * b.shape[-1] // groups)


def _is_heavy(func: Any) -> bool:
    """Whether an operation without a formula may do much arithmetic."""
    namespace, _, name = func.name().rpartition("::")
    if namespace == "aten":
        return _HEAVY.search(name.partition(".")[0]) is not None
    return namespace not in _LIGHT


def _type_of(tensor: torch.Tensor, packet: str) -> str:
    """The type that the hardware multiplies in: float32 may run as tf32."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith("float8"):
        return "float8"
    if name != "float32" or tensor.device.type != "cuda":
        return name
    backends: Any = torch.backends
    backend = backends.cuda.matmul
    if "convolution" in packet:
        backend = backends.cudnn.conv
    # `get_float32_matmul_precision` raises if a program set this attribute.
    allowed = backend.fp32_precision == "tf32"
    able = torch.cuda.get_device_capability(tensor.device)[0] >= _TF32_CAPABILITY
    return "tf32" if allowed and able else name
