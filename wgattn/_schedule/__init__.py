"""Floor 4: a fused Graph becomes one Program: kernels chosen, order, lifetimes of buffers, donation, one submit."""

from .compiled import Compiled as Compiled
from .compiled import load as load
from .lowering import Chosen as Chosen
from .schedule import Cost as Cost
from .schedule import Memory as Memory
from .schedule import Output as Output
from .schedule import Schedule as Schedule
from .schedule import Tap as Tap
from .schedule import compile as compile
