"""Pages of the PyTorch documentation; every rule refers to one of them."""

from __future__ import annotations

_DOCS = "https://docs.pytorch.org/docs/stable/"
_RECIPES = "https://docs.pytorch.org/tutorials/recipes/"
_GUIDE = f"{_DOCS}user_guide/torch_compiler/"
_MODEL = f"{_GUIDE}compile/programming_model."

BREAKS = f"{_MODEL}common_graph_breaks.html"
CAPTURES = f"{_DOCS}notes/cuda.html"
COMPILE_TIME = f"{_MODEL}reducing_compile_time.html"
CONCEPTS = f"{_MODEL}dynamo_core_concepts.html"
CUDAGRAPHS = f"{_GUIDE}torch.compiler_cudagraph_trees.html"
CUSTOM_OPERATORS = f"{_MODEL}custom_ops.html"
DISABLE = f"{_MODEL}compiler_disable.html"
DYNAMIC_SHAPES = f"{_GUIDE}torch.compiler_dynamic_shapes.html"
FAKE_TENSORS = f"{_GUIDE}torch.compiler_fake_tensor.html"
FULLGRAPH = f"{_MODEL}fullgraph_true.html"
GUARDS = f"{_MODEL}reducing_guard_overhead.html"
LOGS = f"{_DOCS}logging.html"
MEMORY = f"{_DOCS}torch_cuda_memory.html"
MODULES = f"{_GUIDE}torch.compiler_nn_module.html"
NUMERICS = f"{_DOCS}notes/numerical_accuracy.html"
PARALLEL = f"{_DOCS}notes/ddp.html"
PROFILING = f"{_GUIDE}torch.compiler_profiling_torch_compile.html"
RANDOMNESS = f"{_DOCS}notes/randomness.html"
RATES = f"{_RECIPES}compiling_optimizer_lr_scheduler.html"
RECOMPILES = f"{_MODEL}recompilation.html"
REGIONS = f"{_RECIPES}regional_compilation.html"
REPORTING = f"{_MODEL}reporting_issues.html"
SKIPPED = f"{_MODEL}skipped_functions.html"
STANCES = f"{_RECIPES}torch_compiler_set_stance_tutorial.html"
TORCHSCRIPT = f"{_DOCS}jit.html"
TUNING = f"{_RECIPES}recipes/tuning_guide.html"
USE = f"{_DOCS}generated/torch.compile.html"
WHERE = f"{_MODEL}where_to_apply_compile.html"

# Where torch explains each of its graph breaks, by number.
BREAK_SITES = (
    "https://meta-pytorch.github.io/compile-graph-break-site/",
    "https://meta-pytorch.org/compile-graph-break-site/",
)
