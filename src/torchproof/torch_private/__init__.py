"""The only package that uses private names of torch, through probed hooks.

In: callbacks and compiled objects. Out: plain values. Supports torch 2.11 to 2.15:
contract.toml lists the private names that each feature needs, and `contract.missing`
reports those that the installed torch lacks. The files are grouped into `dynamo`,
`inductor`, `cudagraphs` and `precompile`. Start with `contract.toml` and `hooks.py`.
Imports `records` and `process`.
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.torch_private import collectives as collectives
    from torchproof.torch_private import comparison as comparison
    from torchproof.torch_private import compile_phases as compile_phases
    from torchproof.torch_private import configs as configs
    from torchproof.torch_private import contract as contract
    from torchproof.torch_private import dispatch_modes as dispatch_modes
    from torchproof.torch_private import environment as environment
    from torchproof.torch_private import global_switches as global_switches
    from torchproof.torch_private import module_copies as module_copies
    from torchproof.torch_private import process_groups as process_groups
    from torchproof.torch_private import replacements as replacements
    from torchproof.torch_private import trees as trees
    from torchproof.torch_private.configs import mark_size as mark_size
    from torchproof.torch_private.configs import (
        set_config as set_config,
    )
    from torchproof.torch_private.cudagraphs import (
        cudagraph_recordings as cudagraph_recordings,
    )
    from torchproof.torch_private.cudagraphs import cudagraph_trees as cudagraph_trees
    from torchproof.torch_private.cudagraphs import recording_times as recording_times
    from torchproof.torch_private.cudagraphs import step_capture as step_capture
    from torchproof.torch_private.cudagraphs import step_marks as step_marks
    from torchproof.torch_private.cudagraphs.cudagraph_recordings import (
        GraphRun as GraphRun,
    )
    from torchproof.torch_private.cudagraphs.cudagraph_recordings import (
        MovedInput as MovedInput,
    )
    from torchproof.torch_private.cudagraphs.cudagraph_recordings import Skip as Skip
    from torchproof.torch_private.cudagraphs.cudagraph_recordings import Split as Split
    from torchproof.torch_private.cudagraphs.cudagraph_trees import Graph as Graph
    from torchproof.torch_private.cudagraphs.cudagraph_trees import Memory as Memory
    from torchproof.torch_private.cudagraphs.step_capture import (
        written_arguments as written_arguments,
    )
    from torchproof.torch_private.dispatch_modes import (
        EagerDispatchMode as EagerDispatchMode,
    )
    from torchproof.torch_private.dispatch_modes import (
        TorchDispatchMode as TorchDispatchMode,
    )
    from torchproof.torch_private.dynamo import class_guards as class_guards
    from torchproof.torch_private.dynamo import compile_contexts as compile_contexts
    from torchproof.torch_private.dynamo import compile_events as compile_events
    from torchproof.torch_private.dynamo import compiled_graphs as compiled_graphs
    from torchproof.torch_private.dynamo import frames as frames
    from torchproof.torch_private.dynamo import hidden_gradients as hidden_gradients
    from torchproof.torch_private.dynamo import recompiles as recompiles
    from torchproof.torch_private.dynamo import (
        rejected_arguments as rejected_arguments,
    )
    from torchproof.torch_private.dynamo import stances as stances
    from torchproof.torch_private.dynamo import subgraphs as subgraphs
    from torchproof.torch_private.dynamo import switches as switches
    from torchproof.torch_private.dynamo import thread_state as thread_state
    from torchproof.torch_private.dynamo import traced_lines as traced_lines
    from torchproof.torch_private.dynamo.break_ids import break_ids as break_ids
    from torchproof.torch_private.dynamo.captured_graphs import (
        higher_order_name as higher_order_name,
    )
    from torchproof.torch_private.dynamo.captured_graphs import is_wrapped as is_wrapped
    from torchproof.torch_private.dynamo.captured_graphs import minify as minify
    from torchproof.torch_private.dynamo.captured_graphs import (
        no_code_generation as no_code_generation,
    )
    from torchproof.torch_private.dynamo.captured_graphs import (
        operator_name as operator_name,
    )
    from torchproof.torch_private.dynamo.captured_graphs import (
        qualified_name as qualified_name,
    )
    from torchproof.torch_private.dynamo.captured_graphs import (
        replace_backends as replace_backends,
    )
    from torchproof.torch_private.dynamo.captured_graphs import (
        run_as_captured as run_as_captured,
    )
    from torchproof.torch_private.dynamo.compile_errors import (
        CompilePhase as CompilePhase,
    )
    from torchproof.torch_private.dynamo.compile_errors import (
        compile_phase as compile_phase,
    )
    from torchproof.torch_private.dynamo.compile_errors import (
        marked_compile_errors as marked_compile_errors,
    )
    from torchproof.torch_private.dynamo.compiled_graphs import (
        CompiledGraph as CompiledGraph,
    )
    from torchproof.torch_private.dynamo.compiled_graphs import Node as Node
    from torchproof.torch_private.dynamo.graph_operations import (
        GraphOperations as GraphOperations,
    )
    from torchproof.torch_private.dynamo.side_effects import (
        changed_objects as changed_objects,
    )
    from torchproof.torch_private.dynamo.side_effects import (
        is_compiling_a_frame as is_compiling_a_frame,
    )
    from torchproof.torch_private.dynamo.size_marks import marks_of as marks_of
    from torchproof.torch_private.dynamo.size_marks import put_marks as put_marks
    from torchproof.torch_private.dynamo.subgraphs import (
        without_regions as without_regions,
    )
    from torchproof.torch_private.environment import describe as describe
    from torchproof.torch_private.environment import triton_version as triton_version
    from torchproof.torch_private.hooks import FrameRequest as FrameRequest
    from torchproof.torch_private.hooks import captured_graphs as captured_graphs
    from torchproof.torch_private.hooks import compile_id_of as compile_id_of
    from torchproof.torch_private.hooks import compiled_contexts as compiled_contexts
    from torchproof.torch_private.hooks import frame_callbacks as frame_callbacks
    from torchproof.torch_private.hooks import graph_callables as graph_callables
    from torchproof.torch_private.hooks import (
        graphs_without_source_lines as graphs_without_source_lines,
    )
    from torchproof.torch_private.hooks import inlined_code as inlined_code
    from torchproof.torch_private.hooks import is_compiled as is_compiled
    from torchproof.torch_private.hooks import is_dynamo_disabled as is_dynamo_disabled
    from torchproof.torch_private.hooks import mark_unbacked as mark_unbacked
    from torchproof.torch_private.hooks import (
        mark_weakly_dynamic as mark_weakly_dynamic,
    )
    from torchproof.torch_private.hooks import marked_dimensions as marked_dimensions
    from torchproof.torch_private.hooks import module_methods as module_methods
    from torchproof.torch_private.hooks import never_compile as never_compile
    from torchproof.torch_private.hooks import original_of as original_of
    from torchproof.torch_private.hooks import patched as patched
    from torchproof.torch_private.hooks import skip_once as skip_once
    from torchproof.torch_private.hooks import stance as stance
    from torchproof.torch_private.hooks import trace_records as trace_records
    from torchproof.torch_private.hooks import was_skipped as was_skipped
    from torchproof.torch_private.hooks import whole_break_stacks as whole_break_stacks
    from torchproof.torch_private.inductor import backends as backends
    from torchproof.torch_private.inductor import cache_lookups as cache_lookups
    from torchproof.torch_private.inductor import compile_costs as compile_costs
    from torchproof.torch_private.inductor import early_start as early_start
    from torchproof.torch_private.inductor import export as export
    from torchproof.torch_private.inductor import prebuilt as prebuilt
    from torchproof.torch_private.inductor import remote_codegen as remote_codegen
    from torchproof.torch_private.inductor import remote_graphs as remote_graphs
    from torchproof.torch_private.inductor.cache_lookups import Lookup as Lookup
    from torchproof.torch_private.nondeterminism import (
        autograd_dtypes as autograd_dtypes,
    )
    from torchproof.torch_private.nondeterminism import set_versions as set_versions
    from torchproof.torch_private.nondeterminism import (
        uses_eager_random as uses_eager_random,
    )
    from torchproof.torch_private.operations import Operations as Operations
    from torchproof.torch_private.operations import without_modes as without_modes
    from torchproof.torch_private.precompile.capture_call import (
        capture_call as capture_call,
    )
    from torchproof.torch_private.precompile.install_call import (
        InstalledCall as InstalledCall,
    )
    from torchproof.torch_private.precompile.install_call import (
        PrecompileError as PrecompileError,
    )
    from torchproof.torch_private.precompile.install_call import (
        install_call as install_call,
    )
    from torchproof.torch_private.tree_specs import Structure as Structure
    from torchproof.torch_private.tree_specs import Unfit as Unfit
else:
    __getattr__, __all__ = lazy_exports(__name__)
