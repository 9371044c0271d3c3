"""The array kernels: pure functions that plan launches over strided operands. `pointwise` is the frame of them all."""

from wgattn._kernels.array import cache_append as cache_append
from wgattn._kernels.array import cache_move as cache_move
from wgattn._kernels.array import cache_rows as cache_rows
from wgattn._kernels.array import copy as copy
from wgattn._kernels.array import elementwise as elementwise
from wgattn._kernels.array import fill as fill
from wgattn._kernels.array import merge_parts as merge_parts
from wgattn._kernels.array import pad as pad
from wgattn._kernels.array import reduce as reduce
from wgattn._kernels.array import rope as rope
