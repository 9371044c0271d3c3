"""Attention for any GPU: a JAX-like front end over WebGPU.

    import numpy as np, wgattn as wa

    out = wa.nn.dot_product_attention(query, key, value, is_causal=True)    # BTNH, as jax.nn
    np.asarray(out)                                                         # waits for it

Importing wgattn makes no device and reads no file; jax is loaded when `jit` or `wgattn.jax` first needs it.
"""

import typing as _typing

from . import masks as masks
from . import nn as nn
from ._array import Array as Array
from ._array import asarray as asarray
from ._cache import KVCache as KVCache
from ._errors import AdapterNotFoundError as AdapterNotFoundError
from ._errors import DeviceLostError as DeviceLostError
from ._errors import OutOfDeviceMemoryError as OutOfDeviceMemoryError
from ._errors import UnsupportedError as UnsupportedError
from ._errors import ValidationError as ValidationError
from ._errors import WgattnError as WgattnError
from ._functions import broadcast_to as broadcast_to
from ._functions import concatenate as concatenate
from ._functions import default_device as default_device
from ._functions import device_put as device_put
from ._functions import devices as devices
from ._functions import exp as exp
from ._functions import mean as mean
from ._functions import repeat as repeat
from ._functions import sum as sum
from ._functions import where as where
from ._gradient import grad as grad
from ._gradient import value_and_grad as value_and_grad
from ._gradient import vjp as vjp
from ._jit import jit as jit
from ._make_graph import make_graph as make_graph
from ._version import __version__ as __version__

if _typing.TYPE_CHECKING:
    from . import jax as jax
    from ._validate import validate as validate
else:  # hidden from type checkers, to which it would give the module every name

    def __getattr__(name: str) -> _typing.Any:
        """The names that load more than NumPy, imported when they are first used."""
        from importlib import import_module

        if name == "validate":
            return import_module("wgattn._validate").validate
        if name == "jax":
            return import_module("wgattn.jax")
        raise AttributeError(f"wgattn has no {name}: it computes attention, and the rest is for jax.numpy or NumPy")


def __dir__() -> list[str]:
    return sorted({*globals(), "jax", "validate"})
