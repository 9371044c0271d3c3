"""A device: the native one, its memory and pipelines, its profile, and how its errors and its loss are noticed."""

import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from .._errors import DeviceLostError, UnsupportedError, WgattnError
from . import provider as providers
from . import tuned
from .memory import Buffer, Memory, Texture, as_bytes
from .pipelines import Pipelines
from .profile import DeviceProfile, Limits
from .program import TextureFormat
from .provider import AdapterInfo, Kind, Provider
from .selftest import check_barriers, probe_subgroups
from .speed import multiply_adds

LIMIT_NAMES = {
    "storage_buffers": "max-storage-buffers-per-shader-stage",
    "workgroup_bytes": "max-compute-workgroup-storage-size",
    "invocations": "max-compute-invocations-per-workgroup",
    "workgroups_per_dimension": "max-compute-workgroups-per-dimension",
    "binding_bytes": "max-storage-buffer-binding-size",
    "buffer_bytes": "max-buffer-size",
    "texture_2d": "max-texture-dimension-2d",
    "storage_textures": "max-storage-textures-per-shader-stage",
}
SIDES = ("max-compute-workgroup-size-x", "max-compute-workgroup-size-y", "max-compute-workgroup-size-z")
MOST_BUFFERS = 10  # what a kernel can use: attention with all operands there are; WebGPU promises 8
MESA_LOOP_TURNS = 65535


FORKED = (
    "this process was forked from one that uses a WebGPU device, which no child can share. Start workers with "
    "multiprocessing.get_context('spawn'), or fork before the first use of wgattn"
)


@dataclass(frozen=True, slots=True)
class ProfileOverride:
    """What tests change of a device, so that one adapter stands in for others; None leaves a field as it is."""

    kind: Kind | None = None
    limits: Limits | None = None
    f16: bool | None = None
    subgroups: bool | None = None


MINIMUM = ProfileOverride(limits=Limits(), f16=False, subgroups=False)

_forks = 0  # from the first process to this one: every call asks, and asking the system for a process's number is slow


class Device:
    """A native device with its memory, its pipelines and its profile. `lock` is held while encoding and submitting."""

    def __init__(self, provider: Provider, info: AdapterInfo, override: ProfileOverride, generation: int) -> None:
        adapter = provider.adapters()[info.index]
        limits = requested_limits(adapter.limits, override.limits)
        features = _features(provider, adapter, info.kind, override)
        self.provider, self.generation, self._forks = provider, generation, _forks
        self.lock = threading.RLock()
        self.lost = ""  # the reason, once the device is gone
        self._rumour = ""  # that some device was lost, perhaps this one
        self._queries: Any = None
        self._mark: Callable[[], bool] | None = None  # of the last submit
        self.written = False  # whether the queue holds writes that no submit has carried yet
        self._constants: WeakValueDictionary[bytes, Buffer] = WeakValueDictionary()
        self.native = provider.device(adapter, features, limits)
        self.mappable = provider.mapping_feature in features
        self.profile = _profile(provider, adapter, info, features, limits, override)
        self.memory, self.pipelines = Memory(self), Pipelines(self)
        usage = provider.module.BufferUsage
        self._usage = usage.STORAGE | usage.UNIFORM | usage.COPY_SRC | usage.COPY_DST | usage.QUERY_RESOLVE
        if self.mappable:
            self._usage |= usage.MAP_READ | usage.MAP_WRITE
        provider.listener = self._hear
        check_barriers(self)
        if self.profile.subgroups:
            size = probe_subgroups(self)
            least, most = provider.subgroup_least(adapter, size), provider.subgroup_most(adapter, size)
            on_cpu = {"subgroup_size": size} if info.kind == "cpu" else {}
            self.profile = replace(self.profile, subgroup_least=least, subgroup_most=most, **on_cpu)
        if not self.profile.is_cpu:
            self.profile = replace(self.profile, multiply_adds=multiply_adds(self))
        if override == ProfileOverride():  # a stand-in for another device is not the one that was tuned
            self.profile = replace(self.profile, tuned=tuned.constants_for(self.profile))

    def check_alive(self) -> None:
        """Raise DeviceLostError once the device is gone, WgattnError in a forked child."""
        if self._forks != _forks:
            raise WgattnError(FORKED)
        if (self._rumour or self.lost) and self.is_lost():
            raise DeviceLostError(
                f"{self.profile.name} was lost ({self.lost}): Arrays that lived on it are gone. "
                "Make them again from their NumPy values; the next call gets a new device"
            )

    def is_lost(self) -> bool:
        if self._rumour:
            self._look_into(self._rumour)
        return bool(self.lost)

    def guard(self, what: str) -> "Guard":
        """Turn the library's errors into ours: DeviceLostError where the device is gone, else WgattnError."""
        return Guard(self, what)

    def submit(self, encoder: Any) -> None:
        """Finish and submit. Raises DeviceLostError, or WgattnError for what is refused: never zeros in its place.

        wgpu-native ends the process at a submit whose buffers are mapped or whose device is lost. Hence the lock, which
        is also held while a buffer that others can reach is mapped; a lost device shows when the encoder is finished.
        """
        with self.guard("submit"), self.lock:
            commands = encoder.finish()
            self.check_alive()
            self._mark = None
            self.written = False
            self.native.queue.submit([commands])

    def wait(self) -> None:
        """Return when all that was submitted is done. Raises DeviceLostError."""
        with self.guard("wait"):
            self.provider.wait(self.native)

    def is_idle(self) -> bool:
        """Whether all that was submitted is done, without waiting."""
        with self.guard("tell whether it is idle"), self.lock:
            if self._mark is None:
                self._mark = self.provider.mark(self.native)
            return self._mark()

    def empty(self, nbytes: int) -> Buffer:
        """A buffer whose bytes are not set."""
        native, size = self.memory.buffer(nbytes)
        return Buffer(self, native, size, nbytes)

    def texture(self, width: int, height: int, texel: TextureFormat) -> Texture:
        key = (width, height, texel)
        return Texture(self, self.memory.texture(key), key)

    def upload(self, content: bytes | bytearray | memoryview | NDArray[Any]) -> Buffer:
        """A buffer with these bytes, padded with zeros to a multiple of 4. They are taken before this returns."""
        data = as_bytes(content)
        with self.guard("take an upload"):
            buffer = self.empty(data.nbytes)
            if data.nbytes:
                self.memory.upload(buffer.native, data)
        return buffer

    def constant(self, content: bytes) -> Buffer:
        """A buffer with these bytes that nobody writes; those who hold equal bytes at one time share it."""
        with self.lock:
            found = self._constants.get(content)
            if found is None:
                found = self._constants[content] = self.upload(content)
            return found

    def download(
        self, buffer: Buffer, offset: int = 0, nbytes: int | None = None, into: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """A copy of bytes [offset, offset + nbytes) as they are after all that was submitted before.

        Where both are multiples of 4 it may be made in `into`.
        """
        native = buffer.alive()
        if buffer.device is not self:
            raise DeviceLostError("the buffer belongs to a device that is gone")
        length = buffer.nbytes - offset if nbytes is None else nbytes
        if offset < 0 or length < 0 or offset + length > buffer.nbytes:
            raise ValueError(f"bytes [{offset}, {offset + length}) of a buffer of {buffer.nbytes}")
        if length == 0:
            return np.empty(0, np.uint8)
        start = offset // 4 * 4
        span = -(-(offset + length - start) // 4) * 4
        with self.guard("be read"):
            found = self.memory.download(native, start, span, into)
        return found[offset - start : offset - start + length]

    def make_buffer(self, size: int) -> Any:
        return self.native.create_buffer(size=size, usage=self._usage)

    def make_texture(self, width: int, height: int, texel: TextureFormat) -> Any:
        usage = self.provider.module.TextureUsage
        texture = self.native.create_texture(
            size=(width, height, 1), format=texel, usage=usage.STORAGE_BINDING | usage.COPY_DST | usage.COPY_SRC
        )
        return texture, texture.create_view()

    def timestamp_queries(self) -> Any:
        if self._queries is None:
            self._queries = self.native.create_query_set(type="timestamp", count=2)
        return self._queries

    def lose(self) -> None:
        """Destroy the native device, as a driver reset would: for tests of what follows."""
        with self.lock:
            self.native.destroy()
            self.lost = self.lost or "destroyed"

    def _hear(self, text: str) -> None:
        if "lost" in text.lower():  # wgpu-py has no device.lost, and its log does not say which device
            self._rumour = text

    def _look_into(self, rumour: str) -> None:
        self._rumour = ""
        try:
            self.native.create_command_encoder().finish()
        except (self.provider.module.GPUError, RuntimeError):
            self.lost = self.lost or _one_line(rumour)


class Guard:
    """What `Device.guard` gives. A class, as a generator's context costs twice as much, and every call has several."""

    __slots__ = ("_device", "_what")

    def __init__(self, device: Device, what: str) -> None:
        self._device, self._what = device, what

    def __enter__(self) -> None:
        self._device.check_alive()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        device = self._device
        if error is None:
            device.check_alive()
        elif isinstance(error, device.provider.module.GPUError | RuntimeError):
            device._look_into(str(error))
            device.check_alive()
            raise WgattnError(f"{device.profile.name} refused to {self._what}: {error}") from error


def _one_line(text: str) -> str:
    return " ".join(text.split())


def requested_limits(adapter: dict[str, int], wanted: Limits | None) -> dict[str, int]:
    """Every limit by name, so that none is a default: the adapter's, or those wanted; of storage buffers, a few.

    Raises UnsupportedError where the adapter has less than what is wanted.
    """
    limits = {name: adapter[name] for name in LIMIT_NAMES.values()}
    buffers = LIMIT_NAMES["storage_buffers"]
    limits[buffers] = min(adapter[buffers], MOST_BUFFERS)
    if wanted is not None:
        for field, name in LIMIT_NAMES.items():
            if (value := getattr(wanted, field)) > adapter[name]:
                raise UnsupportedError(f"a limit override wants {name} {value}; the adapter has {adapter[name]}")
            limits[name] = value
    for name in SIDES:
        limits[name] = min(adapter[name], limits[LIMIT_NAMES["invocations"]])
    return limits


def _features(provider: Provider, adapter: Any, kind: Kind, override: ProfileOverride) -> list[str]:
    wanted = ["timestamp-query", "implicit-device-synchronization"]  # Dawn is not safe from many threads without it
    if override.f16 is not False:
        wanted.append("shader-f16")
    if override.subgroups is not False:
        wanted += [provider.subgroup_feature, providers.MATRIX_FEATURE]
    if kind == "cpu":  # its memory is the host's: bytes go in and out without a staging copy
        wanted.append(provider.mapping_feature)
    return [name for name in wanted if name in adapter.features]


def _profile(
    provider: Provider,
    adapter: Any,
    info: AdapterInfo,
    features: Sequence[str],
    limits: dict[str, int],
    override: ProfileOverride,
) -> DeviceProfile:
    """The profile as far as the adapter tells it; the subgroup size is measured later."""
    values = {field: limits[name] for field, name in LIMIT_NAMES.items()}
    values["binding_bytes"] = values["binding_bytes"] // 4 * 4
    return DeviceProfile(
        name=info.name,
        provider=provider.name,
        backend=info.backend,
        kind=override.kind or info.kind,
        driver=info.driver,
        subgroups=provider.subgroup_feature in features,
        f16="shader-f16" in features,
        timestamps="timestamp-query" in features,
        matrix=provider.matrix_configurations(adapter) if providers.MATRIX_FEATURE in features else (),
        limits=Limits(**values, loop_turns=loop_turns(info.name, info.driver)),
    )


def loop_turns(name: str, driver: str) -> int | None:
    """How many loop turns an invocation may take: lavapipe before Mesa 25 stops silently after 65,535."""
    version = re.search(r"Mesa (\d+)\.", f"{driver} {name}")
    if "llvmpipe" in name.lower() and (version is None or int(version.group(1)) < 25):
        return MESA_LOOP_TURNS
    return None


def _after_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
