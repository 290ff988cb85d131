"""Where in a compilation a Python stack is, in the words `status` uses."""

from __future__ import annotations

from collections.abc import Sequence

# A part of the file's path, the functions that count (all, where none is named), and
# the phase. The first that fits a frame is the frame's.
_TELLING: tuple[tuple[str, frozenset[str], str], ...] = tuple(
    (path, frozenset(functions.split()), phase)
    for path, functions, phase in (
        ("/filelock/", "", "lock"),
        ("/torchproof/torch_private/dynamo/frames.py", "compiler_switches", "lock"),
        ("/torch/utils/_filelock.py", "", "lock"),
        ("/torch/utils/file_baton.py", "", "lock"),
        ("/concurrent/futures/", "result", "worker pool"),
        ("/sympy/", "", "symbolic shapes"),
        ("/torch/utils/_sympy/", "", "symbolic shapes"),
        # It only passes the nodes of a graph on.
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
        # Wrappers that are also around what is no tracing.
        ("/torch/_dynamo/eval_frame.py", "", ""),
        ("/torch/_dynamo/utils.py", "", ""),
        ("/torch/_dynamo/", "", "tracing"),
    )
)


def phase_of_frames(frames: Sequence[tuple[str, str]]) -> str | None:
    """The phase of a stack of (filename, function), innermost last; None if it is none.

    The innermost frame that tells wins.
    """
    for filename, function in reversed(frames):
        if phase := _phase_of_frame(filename, function):
            return phase
    return None


def _phase_of_frame(filename: str, function: str) -> str | None:
    if function in ("flock", "lockf"):
        return "lock"
    for path, functions, phase in _TELLING:
        if path in filename and (not functions or function in functions):
            return phase
    return None
