"""Which share of a device's peak a step uses.

Takes the operations of a step, its time and the name of a GPU. The peaks are NVIDIA's,
in teraflops per second by type, unless the user states others.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping

from torchproof.measure.replies import Operations
from torchproof.records import UserError, shapes

VARIABLE = "TORCHPROOF_PEAK_TFLOPS"
TYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8")
_ANY = "*"  # one number for every type

Peaks = Mapping[str, float]


def _peaks(
    half: float,
    tf32: float | None = None,
    float32: float | None = None,
    *,
    float64: float | None = None,
    float8: float | None = None,
    bfloat16: bool = True,
) -> Peaks:
    """The dense peaks; half precision accumulates in float32."""
    values = {
        "float64": float64,
        "float32": float32,
        "tf32": tf32,
        "float16": half,
        "bfloat16": half if bfloat16 else None,
        "float8": float8,
    }
    return {name: value for name, value in values.items() if value is not None}


# NVIDIA's data sheets, without sparsity, at boost clock; float64 with tensor cores
# where a board has them. The pattern matches the whole name of the device.
_HOPPER = _peaks(989.4, 494.7, 66.9, float64=66.9, float8=1978.9)
_HOPPER_NVL = _peaks(835.5, 417.5, 60.0, float64=60.0, float8=1671.0)
DEVICES: tuple[tuple[str, Peaks], ...] = (
    (r"GB200.*", _peaks(2500.0, 1250.0, 80.0, float64=40.0, float8=5000.0)),
    (r"B200.*", _peaks(2250.0, 1125.0, 75.0, float64=37.0, float8=4500.0)),
    (r"H[12]00 NVL", _HOPPER_NVL),
    (r"H100 PCIe", _peaks(756.0, 378.0, 51.2, float64=51.2, float8=1513.0)),
    (r"(H100 80GB HBM3|H200|GH200 (480GB|144G HBM3e))", _HOPPER),
    (r"A[18]00[- ].*", _peaks(312.0, 156.0, 19.5, float64=19.5)),
    (r"A30", _peaks(165.0, 82.0, 10.3, float64=10.3)),
    (r"A40", _peaks(149.7, 74.8, 37.4)),
    (r"A10", _peaks(125.0, 62.5, 31.2)),
    (r"A10G", _peaks(70.0, 35.0, 35.0)),
    (r"L4", _peaks(121.0, 60.0, 30.3, float8=242.0)),
    (r"L40", _peaks(181.05, 90.5, 90.5, float8=362.0)),
    (r"L40S", _peaks(362.05, 183.0, 91.6, float8=733.0)),
    (r"V100-SXM[23]-.*", _peaks(125.0, None, 15.7, float64=7.8, bfloat16=False)),
    (r"V100-PCIE-.*", _peaks(112.0, None, 14.0, float64=7.0, bfloat16=False)),
    (r"V100S-PCIE-.*", _peaks(130.0, None, 16.4, float64=8.2, bfloat16=False)),
    (r"T4", _peaks(65.0, None, 8.1, bfloat16=False)),
    (r"RTX A6000", _peaks(154.8, 77.4, 38.7)),
    (r"RTX 6000 Ada Generation", _peaks(364.2, 182.1, 91.1, float8=728.5)),
    (r"GeForce RTX 3090", _peaks(71.0, 35.6, 35.6)),
    (r"GeForce RTX 4090", _peaks(165.2, 82.6, 82.6, float8=330.3)),
    (r"GeForce RTX 5090", _peaks(209.5, 104.8, 104.8, float8=419.0)),
)


def utilisation(
    counted: Operations, gpu: str | None, step_ms: float
) -> tuple[float | None, shapes.Flops]:
    """The model FLOPs utilisation, and the operations with why it is unknown."""
    total = sum(counted.by_type.values())
    flops: shapes.Flops = {
        "per_step": total or None,
        "by_type": dict(counted.by_type),
        "not_counted": counted.not_counted,
        "per_second": total / step_ms * 1e3 if total else None,
        "devices": len(counted.devices),
    }
    if not total:
        why = counted.why or "no product of matrices, convolution or attention"
        if counted.not_counted:
            why = f"no formula for {', '.join(counted.not_counted)}"
        return None, {**flops, "why": why}
    peaks = peaks_of(gpu) if stated_peaks() or _on_gpus(counted) else None
    used = {name: _peak(name, peaks or {}) for name in counted.by_type}
    known = {name: peak for name, peak in used.items() if peak is not None}
    if known.keys() != used.keys():
        unknown = ", ".join(name for name in used if name not in known)
        why = f"the peak of the device in {unknown} is not known"
        return None, {**flops, "why": f"{why}; {VARIABLE} states it"}
    flops["peak_tflops"] = known
    shortest_s = sum(n / (known[name] * 1e12) for name, n in counted.by_type.items())
    share = shortest_s / len(counted.devices) / (step_ms / 1e3)
    if share > 1:
        why = "faster than the peak allows: it computed less"
        return None, {**flops, "why": why}
    return share, flops


def _on_gpus(counted: Operations) -> bool:
    return all(device.startswith("cuda") for device in counted.devices)


def _peak(name: str, peaks: Peaks) -> float | None:
    return peaks.get(name, peaks.get(_ANY))


def peaks_of(gpu: str | None) -> Peaks | None:
    """What the user states, else what is known about the GPU; None if nothing is."""
    if stated := stated_peaks():
        return stated
    name = re.sub(r"^(NVIDIA|Tesla) ", "", gpu or "")
    if "MIG" in name:  # a part of a board
        return None
    return next((p for pattern, p in DEVICES if re.fullmatch(pattern, name)), None)


def stated_peaks() -> Peaks | None:
    """`TORCHPROOF_PEAK_TFLOPS`: a number, or `bfloat16=989,tf32=495`."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    peaks: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.rpartition("="))
        name = name if equals else _ANY
        try:
            peaks[name] = float(value)
        except ValueError:
            peaks[name] = math.nan
        if name not in (*TYPES, _ANY) or not 0 < peaks[name] < math.inf:
            raise UserError(
                f"{VARIABLE}={text}: expected teraflops per second, as in 989 or"
                f" bfloat16=989,tf32=495, of the types {', '.join(TYPES)}"
            )
    return peaks
