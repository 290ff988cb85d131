"""Maps a Python stack to a phase of compiling, for `status`."""

from __future__ import annotations

import functools
from collections.abc import Sequence

# Part of a file's path, function names (empty: all functions), and the phase. The first
# row that matches a frame gives its phase.
_PHASES: tuple[tuple[str, frozenset[str], str], ...] = tuple(
    (path, frozenset(functions.split()), phase)
    for path, functions, phase in (
        ("/filelock/", "", "lock"),
        ("/torch/utils/_filelock.py", "", "lock"),
        ("/torch/utils/file_baton.py", "", "lock"),
        ("/concurrent/futures/", "result", "worker pool"),
        ("/sympy/", "", "symbolic shapes"),
        ("/torch/utils/_sympy/", "", "symbolic shapes"),
        # `run_node` only iterates over the nodes of a graph.
        ("/torch/fx/experimental/symbolic_shapes.py", "run_node", ""),
        ("/torch/fx/experimental/symbolic_shapes.py", "", "symbolic shapes"),
        ("/torch/fx/experimental/sym_node.py", "", "symbolic shapes"),
        ("/torch/distributed/", "", "collective"),
        ("/torch/_inductor/cpp_builder.py", "", "C++ compiler"),
        ("/torch/_inductor/cpu_vec_isa.py", "", "C++ compiler"),
        ("/torch/_inductor/autotune_process.py", "", "autotuning"),
        ("/torch/_inductor/select_algorithm.py", "", "autotuning"),
        ("/torch/_inductor/runtime/benchmarking.py", "", "autotuning"),
        ("/torch/_inductor/runtime/coordinate_descent_tuner.py", "", "autotuning"),
        (
            "/torch/_inductor/runtime/triton_heuristics.py",
            "bench benchmark_all_configs autotune_to_one_config",
            "autotuning",
        ),
        ("/torch/_inductor/runtime/triton_heuristics.py", "", "Triton compiler"),
        ("/triton/runtime/autotuner.py", "", "autotuning"),
        ("/site-packages/triton/", "", "Triton compiler"),
        ("/torch/_inductor/async_compile.py", "", "worker pool"),
        ("/torch/_inductor/compile_worker/", "", "worker pool"),
        ("/torch/_inductor/cudagraph_trees.py", "", "graph recording"),
        ("/torch/_inductor/", "", "code generation"),
        ("/torch/_functorch/", "", "AOTAutograd"),
        # Wrappers that also surround code other than tracing.
        ("/torch/_dynamo/eval_frame.py", "", ""),
        ("/torch/_dynamo/utils.py", "", ""),
        ("/torch/_dynamo/", "", "tracing"),
    )
)


def phase_of_frames(frames: Sequence[tuple[str, str]]) -> str | None:
    """The phase of the innermost frame that has one; None if no frame does.

    `frames` are pairs (filename, function), innermost last.
    """
    for filename, function in reversed(frames):
        if phase := _phase_of_frame(filename, function):
            return phase
    return None


@functools.lru_cache(maxsize=4096)
def _phase_of_frame(filename: str, function: str) -> str | None:
    if function in ("flock", "lockf"):
        return "lock"
    for path, functions, phase in _PHASES:
        if path in filename and (not functions or function in functions):
            return phase
    return None
