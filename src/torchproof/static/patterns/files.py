"""The patterns of whole files: how a program compiles, captures and scripts."""

from __future__ import annotations

from torchproof.static.patterns import (
    capturing,
    compiling,
    gone,
    parallel,
    rates,
    results,
    settings,
    torchscript,
)
from torchproof.static.patterns._pattern import FilePattern

FILE_PATTERNS: tuple[FilePattern, ...] = (
    compiling.LazyTry(),
    compiling.TimedNothing(),
    compiling.CompiledAnew(),
    compiling.FreshBackend(),
    parallel.AfterParallel(),
    capturing.CaptureInCapture(),
    capturing.UnmarkedSteps(),
    capturing.KeptOutput(),
    settings.LateEnvironment(),
    settings.UnknownSetting(),
    settings.SilentErrors(),
    gone.GoneApi(),
    gone.ScaledBfloat16(),
    rates.FloatRate(),
    results.ThrownAway(),
    results.OtherMethod(),
    results.OriginalCalled(),
    results.PrefixedCheckpoint(),
    torchscript.TracedBranch(),
    torchscript.Deprecated(),
    torchscript.Unscriptable(),
    torchscript.TracedTraining(),
    torchscript.Mixed(),
)
