"""wgpu-py's C types, read at once: the very objects that cffi makes one by one, and all that calls ask for."""

import subprocess
import sys
from types import SimpleNamespace

import cffi
import pytest

from wgattn._runtime.wgpu_types import ARRAYS, FUNCTIONS, OTHERS, read_types

EVERY = (*FUNCTIONS, *ARRAYS, *OTHERS)
NAMES = {word.strip("(),*[] ") for name in EVERY for word in name.replace("(", " ").split()}


def library() -> cffi.FFI:
    """One in which all names are declared."""
    made = cffi.FFI()
    made.cdef("".join(f"typedef struct {{ int a; }} {name};" for name in sorted(NAMES) if name.startswith("WGPU")))
    return made


def test_they_are_what_cffi_makes():
    one_by_one, at_once = library(), library()
    expected = {name: one_by_one._typeof(name, name in FUNCTIONS) for name in EVERY}
    read_types(at_once)
    found = {name: at_once._parsed_types[name] for name in EVERY}
    assert {name: (kind.kind, str(kind)) for name, (kind, _) in found.items()} == {
        name: (kind.kind, str(kind)) for name, kind in expected.items()
    }
    assert {name for name, (_, function) in found.items() if function} == set(FUNCTIONS)
    later = {name: at_once.typeof(name) for name in OTHERS}
    at_once._parsed_types.clear()
    assert all(at_once.typeof(name) is kind for name, kind in later.items())


def test_of_a_library_without_them_none_is_read():
    ffi = cffi.FFI()
    ffi.cdef("typedef struct { int a; } WGPUStringView;")
    read_types(ffi)
    assert not set(ffi._parsed_types) & set(EVERY)


@pytest.mark.parametrize("kept", [None, {}])
def test_of_a_cffi_with_other_insides_none_is_told(kept):
    ffi = library()
    told = SimpleNamespace(typeof=ffi.typeof, _parsed_types=kept)
    read_types(told)
    assert told._parsed_types == kept


@pytest.mark.device
def test_calls_ask_for_few_others():
    script = """
import numpy as np
import wgattn
from wgattn._runtime import device
from wgattn._runtime.wgpu_types import ARRAYS, FUNCTIONS, OTHERS
x = np.ones((1, 64, 2, 64), np.float32)
np.asarray(wgattn.nn.dot_product_attention(x, x, x, is_causal=True))
if device().provider.name == "wgpu":
    from wgpu.backends.wgpu_native._ffi import ffi
    asked = set(ffi._parsed_types) - {*ARRAYS, *FUNCTIONS, *OTHERS}
    assert len(asked) <= 10, f"wgpu-py asks for types that are not in wgattn's list: {sorted(asked)}"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
