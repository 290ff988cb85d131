"""Turns the name of a target into something to run; contains the bundled workloads.

In: the text of a target and the options of a verb. Out: a `Target`, and in the child
process the loaded function with its calls. Start with `target.py`.
Imports `records`, `process` and `torch_private`.
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.records.options import Options as Options
    from torchproof.targets import calls as calls
    from torchproof.targets import live as live
    from torchproof.targets import live_state as live_state
    from torchproof.targets import overlay as overlay
    from torchproof.targets import parallel as parallel
    from torchproof.targets import script as script
    from torchproof.targets.calls import Answers as Answers
    from torchproof.targets.factories import factories_in as factories_in
    from torchproof.targets.factories import factory_targets as factory_targets
    from torchproof.targets.factories import instead_of_script as instead_of_script
    from torchproof.targets.introspect import called_by_torch as called_by_torch
    from torchproof.targets.introspect import code_of as code_of
    from torchproof.targets.introspect import codes_around as codes_around
    from torchproof.targets.introspect import compiler_stack as compiler_stack
    from torchproof.targets.introspect import forwards as forwards
    from torchproof.targets.introspect import frame_of as frame_of
    from torchproof.targets.introspect import name_of as name_of
    from torchproof.targets.introspect import plain as plain
    from torchproof.targets.introspect import stack as stack
    from torchproof.targets.introspect import what as what
    from torchproof.targets.job import Job as Job
    from torchproof.targets.target import Loaded as Loaded
    from torchproof.targets.target import Target as Target
    from torchproof.targets.target import assert_as_written as assert_as_written
    from torchproof.targets.target import assert_size as assert_size
    from torchproof.targets.target import keywords as keywords
    from torchproof.targets.target import own_file as own_file
    from torchproof.targets.target import parse as parse
    from torchproof.targets.target import raised as raised
    from torchproof.targets.text_models import TextModel as TextModel
    from torchproof.targets.text_models import end_tokens as end_tokens
    from torchproof.targets.text_models import text_model as text_model
    from torchproof.targets.workloads import WORKLOADS as WORKLOADS
else:
    __getattr__, __all__ = lazy_exports(__name__)
