"""Whole models of benchmarks/zoo.py with breaks inside the library.

Each cell is a module.
"""

# %% model_xlm
from benchmarks.zoo_models import FACTORIES

make = FACTORIES["transformers_xlm"]

# %% model_ctrl
from benchmarks.zoo_models import FACTORIES

make = FACTORIES["transformers_ctrl"]

# %% model_pixtral
from benchmarks.zoo_models import FACTORIES

make = FACTORIES["transformers_pixtral"]

# %% model_segformer
from benchmarks.zoo_models import FACTORIES

make = FACTORIES["transformers_segformer"]

# %% model_longformer
from benchmarks.zoo_models import FACTORIES

make = FACTORIES["transformers_longformer"]
