"""Lists the patterns for whole files: how a program compiles, captures and scripts."""

from __future__ import annotations

from torchproof.checking.static.patterns import (
    capturing,
    compiling,
    learning_rates,
    parallel,
    removed_apis,
    results,
    settings,
    torchscript,
)
from torchproof.checking.static.patterns.pattern import FilePattern

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
    removed_apis.RemovedApiUse(),
    removed_apis.ScaledBfloat16(),
    learning_rates.FloatRate(),
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
