"""Named ways to run a model, and the recipe file that stores one.

In: the name of a strategy or a recipe. Out: a model with it applied, or the Python
lines that do the same. Start with `strategy.py`.
Imports `records`, `process` and `torch_private`.
"""

from typing import TYPE_CHECKING

from torchproof.records.lazy import lazy_exports

if TYPE_CHECKING:
    from torchproof.strategies import compile_arguments as compile_arguments
    from torchproof.strategies import nesting as nesting
    from torchproof.strategies import planning as planning
    from torchproof.strategies import recipe as recipe
    from torchproof.strategies import regions as regions
    from torchproof.strategies import source_lines as source_lines
    from torchproof.strategies.applied import Applied as Applied
    from torchproof.strategies.applied import Compilation as Compilation
    from torchproof.strategies.applied import apply as apply
    from torchproof.strategies.applied import on_cuda as on_cuda
    from torchproof.strategies.call_recorder import CallRecorder as CallRecorder
    from torchproof.strategies.call_recorder import Sizes as Sizes
    from torchproof.strategies.compile_arguments import (
        invalid_argument as invalid_argument,
    )
    from torchproof.strategies.compile_arguments import is_keywords as is_keywords
    from torchproof.strategies.plan import Plan as Plan
    from torchproof.strategies.plan import Site as Site
    from torchproof.strategies.plan import Varying as Varying
    from torchproof.strategies.recipe import FILE as FILE
    from torchproof.strategies.recipe import InvalidRecipe as InvalidRecipe
    from torchproof.strategies.recipe import Recipe as Recipe
    from torchproof.strategies.recipe import loads as loads
    from torchproof.strategies.recipe import matching as matching
    from torchproof.strategies.recipe.adoption import TUNE_HINT as TUNE_HINT
    from torchproof.strategies.recipe.adoption import Adoption as Adoption
    from torchproof.strategies.recipe.adoption import RecipeSource as RecipeSource
    from torchproof.strategies.recipe.adoption import recipe_source as recipe_source
    from torchproof.strategies.recipe.fingerprint import code_hash as code_hash
    from torchproof.strategies.recipe.fingerprint import fingerprint as fingerprint
    from torchproof.strategies.recipe.matching import (
        environment_here as environment_here,
    )
    from torchproof.strategies.strategy import BLOCKS as BLOCKS
    from torchproof.strategies.strategy import GRAPH as GRAPH
    from torchproof.strategies.strategy import MODE_OPTIONS as MODE_OPTIONS
    from torchproof.strategies.strategy import MODES as MODES
    from torchproof.strategies.strategy import NotApplicable as NotApplicable
    from torchproof.strategies.strategy import Strategy as Strategy
    from torchproof.strategies.strategy import defaults as defaults
    from torchproof.strategies.strategy import parse as parse
    from torchproof.strategies.strategy import records_graphs as records_graphs
    from torchproof.strategies.strategy import with_arguments as with_arguments
else:
    __getattr__, __all__ = lazy_exports(__name__)
