"""What production code loads: `compile`, `graph`, `step`, `load` and `apply_patches`.

In: a model. Out: the same model, compiled safely: it falls back to eager and says why.
Start with `production.py`; CUDA graphs are in `cudagraph/`, deploy packs in `loading/`.
Imports `records`, `process`, `strategies` and `torch_private`.
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.runtime import patch_files as patch_files
    from torchproof.runtime.compiled_forward import CompiledForward as CompiledForward
    from torchproof.runtime.cudagraph import graph as graph
    from torchproof.runtime.cudagraph.graphed_step import Graphed as Graphed
    from torchproof.runtime.forward_state import save_state as save_state
    from torchproof.runtime.graph_effects import in_graph as in_graph
    from torchproof.runtime.graph_effects import on_host as on_host
    from torchproof.runtime.graph_effects import raise_if as raise_if
    from torchproof.runtime.host_calls import host_call as host_call
    from torchproof.runtime.host_values import host_value as host_value
    from torchproof.runtime.host_values import is_data as is_data
    from torchproof.runtime.loading import PackRefused as PackRefused
    from torchproof.runtime.loading import cache_install as cache_install
    from torchproof.runtime.loading import compatibility as compatibility
    from torchproof.runtime.loading import example_inputs as example_inputs
    from torchproof.runtime.loading import load as load
    from torchproof.runtime.loading import open_model as open_model
    from torchproof.runtime.loading import precompiled_calls as precompiled_calls
    from torchproof.runtime.loading import source_hash as source_hash
    from torchproof.runtime.loading import warm_up as warm_up
    from torchproof.runtime.loading.input_spec import CallSpec as CallSpec
    from torchproof.runtime.loading.input_spec import InputSpec as InputSpec
    from torchproof.runtime.loading.input_spec import Range as Range
    from torchproof.runtime.loading.input_spec import TensorSpec as TensorSpec
    from torchproof.runtime.loading.input_spec import by_name as by_name
    from torchproof.runtime.loading.input_spec import evaluate as evaluate
    from torchproof.runtime.loading.input_spec import order_of as order_of
    from torchproof.runtime.loading.pack_details import CachesDetails as CachesDetails
    from torchproof.runtime.loading.pack_details import CallInputs as CallInputs
    from torchproof.runtime.loading.pack_details import PackageDetails as PackageDetails
    from torchproof.runtime.loading.pack_details import PackedCall as PackedCall
    from torchproof.runtime.loading.pack_details import PackEntry as PackEntry
    from torchproof.runtime.loading.pack_details import TensorLayout as TensorLayout
    from torchproof.runtime.loading.pack_details import read_details as read_details
    from torchproof.runtime.loading.packages import PACKAGE_FILE as PACKAGE_FILE
    from torchproof.runtime.loading.packages import DeployedModel as DeployedModel
    from torchproof.runtime.loading.packages import load_package as load_package
    from torchproof.runtime.loading.precompiled_calls import Arguments as Arguments
    from torchproof.runtime.pack_format import keys as keys
    from torchproof.runtime.pack_format import manifest as manifest
    from torchproof.runtime.pack_format import trust as trust
    from torchproof.runtime.pack_format.contents import Contents as Contents
    from torchproof.runtime.pack_format.contents import is_pack as is_pack
    from torchproof.runtime.pack_format.contents import open_pack as open_pack
    from torchproof.runtime.pack_format.keys import read_key as read_key
    from torchproof.runtime.pack_format.manifest import File as File
    from torchproof.runtime.pack_format.manifest import Manifest as Manifest
    from torchproof.runtime.pack_format.manifest import Refused as Refused
    from torchproof.runtime.pack_format.manifest import Unverified as Unverified
    from torchproof.runtime.pack_format.trust import assert_trusted as assert_trusted
    from torchproof.runtime.patches import apply_patches as apply_patches
    from torchproof.runtime.production import compile as compile
    from torchproof.runtime.production import compiled_forward_of as compiled_forward_of
    from torchproof.runtime.production import plan as plan
    from torchproof.runtime.production import retry as retry
    from torchproof.runtime.production import status as status
    from torchproof.runtime.production import uncompiled_reason as uncompiled_reason
    from torchproof.runtime.status_report import FALLBACK_KINDS as FALLBACK_KINDS
    from torchproof.runtime.status_report import Status as Status
    from torchproof.runtime.steps import step as step
else:
    __getattr__, __all__ = lazy_exports(__name__)
