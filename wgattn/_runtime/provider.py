"""The WebGPU library underneath: wgpu-py, or Dawn through wgpudawn. All that differs between them is in this file."""

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._errors import AdapterNotFoundError, UnsupportedError
from .advice import install_advice
from .wgpu_types import read_types

Kind = Literal["discrete", "integrated", "cpu", "unknown"]
KINDS: dict[str, Kind] = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "cpu"}
FIXED_LANES = {0x10DE: 32, 0x1002: 32, 0x106B: 32}  # NVIDIA, AMD (or 64) and Apple, by PCI vendor
OR_MORE = (0x1002,)  # of these, who has larger subgroups too
MATRIX_FEATURE = "chromium-experimental-subgroup-matrix"


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """An adapter as `list_adapters` gives it; `index` and parts of `name` are what `choose_adapter` takes."""

    index: int
    name: str
    kind: Kind
    backend: str
    driver: str


class Provider:
    """One of the two libraries, loaded. `native` adapters and devices are its objects, with wgpu-py's methods."""

    def __init__(self, name: Literal["wgpu", "dawn"]) -> None:
        self.name: Literal["wgpu", "dawn"] = name
        self.module: Any
        self._extras: Any = None
        if name == "dawn":
            try:
                import wgpudawn
                from wgpudawn.backends.dawn import extras
            except ImportError as error:
                raise AdapterNotFoundError(
                    "WGATTN_PROVIDER is dawn, but wgpudawn is not installed: pip install '.[dawn]' in wgattn's checkout"
                ) from error
            # f16 and matrix units are behind these toggles, which count only before Dawn's first adapter is asked for
            with suppress(RuntimeError):  # another library in this process was first: do with what its choice gives
                extras.set_instance_extras(enable_toggles=["allow_unsafe_apis", "vulkan_enable_f16_on_nvidia"])
            self.module, self._extras = wgpudawn, extras
        else:
            import wgpu
            from wgpu.backends.wgpu_native._ffi import ffi

            self.module = wgpu
            read_types(ffi)
        self.subgroup_feature = "subgroups" if name == "dawn" else "subgroup"
        self.mapping_feature = "buffer-map-extended-usages" if name == "dawn" else "mappable-primary-buffers"
        self.compiles_in_threads = name == "wgpu"  # Dawn compiles one after the other, whoever asks
        self._adapters: list[Any] | None = None
        # called with each error that the library can only log: a loss, or an error between two calls
        self.listener: Callable[[str], None] | None = None
        logging.getLogger(self.module.__name__).addFilter(self._hear)

    def adapters(self) -> list[Any]:
        """The native adapters, in the library's order. OpenGL ones are left out: they cannot run what we have."""
        if self._adapters is None:
            found = self.module.gpu.enumerate_adapters_sync()
            self._adapters = [a for a in found if not a.info["backend_type"].startswith("OpenGL")]
        return self._adapters

    def device(self, adapter: Any, features: Sequence[str], limits: dict[str, int]) -> Any:
        """A native device with these features and limits, without bounds checks if possible: kernels prove theirs."""
        self._adapters = None  # an adapter makes one device; for another it has to be asked for again
        wanted = {"required_features": list(features), "required_limits": limits}
        try:
            if self._extras is not None:
                # timestamps are rounded to 0.1 ms unless that toggle is off
                toggles = {"enable_toggles": ["disable_robustness"], "disable_toggles": ["timestamp_quantization"]}
                return self._extras.request_device_sync(adapter, **toggles, **wanted)
            return adapter.request_device_sync(**wanted)
        except (self.module.GPUError, RuntimeError) as error:
            raise AdapterNotFoundError(
                f"the adapter {adapter.info['device']} gave no device: {error}. "
                "Update its driver, or name another adapter in WGATTN_ADAPTER"
            ) from error

    def shader_module(self, device: Any, source: str, label: str) -> Any:
        """A compiled module; raises the library's own error for WGSL that it refuses."""
        if self.name == "wgpu" and (make := _trusted_module()) is not None:
            return make(device, source, label)
        return device.create_shader_module(code=source, label=label)

    def wait(self, device: Any) -> None:
        """Return when all that was submitted is done."""
        device._poll_wait()  # queue.on_submitted_work_done_sync raises TypeError in wgpu-py 0.32

    def settle(self, device: Any, promise: Any) -> None:
        """Wait until a buffer is mapped. Most often the device is done with it already, and one poll from here says so:
        wgpu-py's own thread, which polls else, takes a tenth of a millisecond to wake."""
        if self.name == "wgpu":
            device._poll()
        promise.sync_wait()

    def writable(self, buffer: Any, nbytes: int) -> NDArray[np.uint8]:
        """The first `nbytes` bytes of a buffer that is mapped for writing, until it is unmapped."""
        return np.frombuffer(buffer._experimental_get_mapped_range(0, nbytes), np.uint8)

    def mark(self, device: Any) -> Callable[[], bool]:
        """A question that can be asked again and again: is all done that was submitted before this call?"""
        if self.name == "dawn":
            promise = device.queue.on_submitted_work_done_async()

            def is_done() -> bool:
                if promise._state == "pending":
                    device._poll()
                return promise._state != "pending"

            return is_done
        return _wgpu_mark(device)

    def nanoseconds_per_tick(self, device: Any) -> float:
        if self.name == "wgpu":
            from wgpu.backends.wgpu_native import _api

            native: Any = _api.libf
            return float(native.wgpuQueueGetTimestampPeriod(device.queue._internal))
        return 1.0  # Dawn resolves timestamps to nanoseconds itself

    def subgroup_least(self, adapter: Any, measured: int) -> int:
        """The lanes that every subgroup has at least: what the adapter says, which may be no more than WebGPU's 4, or
        what all GPUs of its vendor have, if one that was `measured` has as many.
        """
        said = int(adapter.info.get("stackgroup_min_size", 0))  # the key is what wgpu-py's bindings make of it
        return max(said, min(measured, FIXED_LANES.get(adapter.info.get("vendor_id", 0), 0)))

    def subgroup_most(self, adapter: Any, measured: int) -> int:
        """The lanes that every subgroup has at most: what the adapter says, or what all GPUs of its vendor have."""
        vendor = adapter.info.get("vendor_id", 0)
        if FIXED_LANES.get(vendor) == measured and vendor not in OR_MORE:
            return measured
        return int(adapter.info.get("stackgroup_max_size", 128))

    def matrix_configurations(self, adapter: Any) -> tuple[str, ...]:
        """The subgroup matrix shapes that can be used, e.g. "f16-f32-16x16x16" (M x N x K). Only Dawn has them."""
        if self._extras is None or MATRIX_FEATURE not in adapter.features:
            return ()
        found = self._extras.get_adapter_properties(adapter).get("subgroup_matrix_configs", ())
        return tuple(
            dict.fromkeys(
                f"{c['component_type']}-{c['result_component_type']}-{c['m']}x{c['n']}x{c['k']}" for c in found
            )
        )

    def _hear(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR and self.listener is not None:
            self.listener(record.getMessage())
        return True


def _trusted_module() -> Callable[[Any, str, str], Any] | None:
    """wgpu-native's call for modules without run-time checks (2x faster kernels), absent from wgpu-py's public face."""
    from wgpu.backends.wgpu_native import _api
    from wgpu.backends.wgpu_native._ffi import ffi
    from wgpu.backends.wgpu_native._ffi import lib as constants

    lib: Any = constants
    call = getattr(_api.libf, "wgpuDeviceCreateShaderModuleTrusted", None)
    if call is None:
        return None

    def make(device: Any, source: str, label: str) -> Any:
        text = _api.new_struct_p("WGPUShaderSourceWGSL *", code=_api.to_c_string_view(source))
        text[0].chain.next = ffi.NULL
        text[0].chain.sType = lib.WGPUSType_ShaderSourceWGSL
        chain = ffi.cast("WGPUChainedStruct *", text)
        descriptor = _api.new_struct_p(
            "WGPUShaderModuleDescriptor *", nextInChain=chain, label=_api.to_c_string_view(label)
        )
        return _api.GPUShaderModule(label, call(device._internal, descriptor, 0), device)

    return make


_marks: list[tuple[Any, list[int]]] = []  # callbacks that wgpu-native has yet to call: they must outlive their mark


def _wgpu_mark(device: Any) -> Callable[[], bool]:
    """wgpu-native's own call: wgpu-py 0.32 declares its callback wrongly, and a poll that does not wait says done."""
    from wgpu.backends.wgpu_native import _api
    from wgpu.backends.wgpu_native._ffi import ffi
    from wgpu.backends.wgpu_native._ffi import lib as constants

    lib: Any = constants
    native: Any = _api.libf
    done: list[int] = []

    @ffi.callback("void(WGPUQueueWorkDoneStatus, WGPUStringView, void *, void *)")
    def finished(status: int, message: Any, first: Any, second: Any) -> None:
        done.append(status)

    _marks[:] = [mark for mark in _marks if not mark[1]]
    _marks.append((finished, done))
    info = _api.new_struct(
        "WGPUQueueWorkDoneCallbackInfo", mode=lib.WGPUCallbackMode_AllowProcessEvents, callback=finished
    )
    native.wgpuQueueOnSubmittedWorkDone(device.queue._internal, info)

    def is_done() -> bool:
        if not done:
            device._poll()
        return bool(done)

    return is_done


_lock = threading.Lock()
_provider: Provider | None = None


def provider() -> Provider:
    """The library that WGATTN_PROVIDER names (`wgpu`, the default, or `dawn`), loaded at the first call."""
    global _provider
    with _lock:
        if _provider is None:
            name = os.environ.get("WGATTN_PROVIDER", "wgpu") or "wgpu"
            if name not in ("wgpu", "dawn"):
                raise UnsupportedError(f"WGATTN_PROVIDER is {name!r}: it is wgpu (the default) or dawn")
            if sys.platform == "linux":  # drivers look for it, and print an error each where it is missing
                os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
            _provider = Provider(name)  # type: ignore[arg-type]
        return _provider


def loaded() -> bool:
    """Whether a WebGPU library was loaded in this process."""
    return _provider is not None


def describe(index: int, adapter: Any) -> AdapterInfo:
    info = adapter.info
    name = info["device"] or info["description"] or info["vendor"] or "unnamed adapter"
    kind = KINDS.get(info["adapter_type"], "unknown")
    return AdapterInfo(index, name, kind, info["backend_type"], info["description"])


def pick(adapters: Sequence[AdapterInfo], chosen: str | int | None, library: str = "wgpu") -> AdapterInfo:
    """The adapter of that index or with that text in its name; None: discrete before integrated before CPU.

    Raises AdapterNotFoundError where there is none.
    """
    if not adapters:
        also = "" if library == "wgpu" else f"{library} takes fewer than WGATTN_PROVIDER=wgpu does: try that. "
        raise AdapterNotFoundError(f"no WebGPU adapter was found. {also}{install_advice()}")
    if chosen is None:
        order = ("discrete", "integrated", "unknown", "cpu")
        return min(adapters, key=lambda a: (order.index(a.kind), a.index))
    text = str(chosen).strip()
    if text.isdecimal():
        matches = [a for a in adapters if a.index == int(text)]
    else:
        matches = [a for a in adapters if text.lower() in f"{a.name} {a.backend} {a.driver}".lower()]
    if matches:
        return matches[0]
    listed = "; ".join(f"{a.index}: {a.name} ({a.kind}, {a.backend})" for a in adapters)
    raise AdapterNotFoundError(f"no adapter is called {text!r}. There are: {listed}. Give an index or part of a name")
