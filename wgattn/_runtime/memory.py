"""Device memory: buffers and textures that go back to a pool of their size, and the ways of bytes to and from them."""

import threading
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._errors import OutOfDeviceMemoryError
from .hostcopy import copy_bytes
from .program import TextureFormat

if TYPE_CHECKING:
    from .device import Device

TextureKey = tuple[int, int, TextureFormat]
CHUNK = 32 << 20  # bytes a staging buffer takes at most, so that the host's copy and the device's overlap
CHUNKS = 4  # staging buffers of a size that are kept in flight
SPARE = 64 << 20  # free bytes that are always kept
SMALL = 1 << 16  # bytes below which the queue's own write is quicker than mapping


@lru_cache(maxsize=4096)
def size_class(nbytes: int) -> int:
    """The bytes that are really taken for `nbytes`: eighths of a power of two, so that at most an eighth is lost.

    Example: size_class(1000) is 1024, size_class(1100) is 1280.
    """
    if nbytes <= 256:
        return 256
    step = max(1 << ((nbytes - 1).bit_length() - 4), 256)
    return -(-nbytes // step) * step


def as_bytes(content: bytes | bytearray | memoryview | NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of `content` in row-major order, padded with zeros to a multiple of 4; copied only where needed."""
    if isinstance(content, np.ndarray):
        flat = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
    else:
        flat = np.frombuffer(content, np.uint8)
    if flat.nbytes % 4:
        flat = np.concatenate([flat, np.zeros(-flat.nbytes % 4, np.uint8)])
    return flat


class Buffer:
    """`nbytes` of device memory, a multiple of 4. When the last reference goes, the memory goes back to the pool."""

    __slots__ = ("__weakref__", "device", "native", "nbytes", "size")

    def __init__(self, device: "Device", native: Any, size: int, nbytes: int) -> None:
        self.device, self.native, self.size, self.nbytes = device, native, size, nbytes

    def alive(self) -> Any:
        """The native buffer. Raises DeviceLostError once its device is gone."""
        self.device.check_alive()
        return self.native

    def __del__(self) -> None:
        self.device.memory.give_back(self.size, self.native)

    def __repr__(self) -> str:
        return f"Buffer({self.nbytes} bytes)"


class Texture:
    """A 2-D storage texture of 16-byte texels, pooled as a Buffer is."""

    __slots__ = ("__weakref__", "device", "key", "native")

    def __init__(self, device: "Device", native: Any, key: TextureKey) -> None:
        self.device, self.native, self.key = device, native, key

    @property
    def nbytes(self) -> int:
        return self.key[0] * self.key[1] * 16

    def alive(self) -> Any:
        """The (texture, view) pair. Raises DeviceLostError once its device is gone."""
        self.device.check_alive()
        return self.native

    def __del__(self) -> None:
        self.device.memory.give_back(self.key, self.native)

    def __repr__(self) -> str:
        width, height, texel = self.key
        return f"Texture({width} x {height} {texel})"


class Memory:
    """The pool of one device. Lists of free memory by size; taking and giving are single list operations, so safe from
    any thread and from a finaliser."""

    def __init__(self, device: "Device") -> None:
        self._device = device
        self._free: dict[int | TextureKey, list[Any]] = {}
        # What is handed out is held here too: a Buffer that dies in a reference cycle would give back a native object
        # that the collector has finalised along with it.
        self._used: dict[int, Any] = {}
        self._staging: dict[tuple[str, int], list[Any]] = {}
        self._counting = threading.Lock()
        self.reserved = 0  # bytes of all buffers and textures that exist, in use or free
        self._peak = 0  # the most bytes in use at once, as far as known
        self._queued = 0
        self.poison = False
        self._poison_block = np.zeros(0, np.uint8)

    def give_back(self, key: int | TextureKey, native: Any) -> None:
        del self._used[id(native)]
        self._free.setdefault(key, []).append(native)

    def buffer(self, nbytes: int) -> tuple[Any, int]:
        """A native buffer of at least `nbytes` and its size. Raises OutOfDeviceMemoryError."""
        limit = self._device.profile.limits.buffer_bytes
        if nbytes > limit:
            raise OutOfDeviceMemoryError(
                f"{nbytes:,} bytes were asked for in one buffer; {self._device.profile.name} has a limit of {limit:,}. "
                "Make the arrays smaller, split the call into several, or use a narrower dtype"
            )
        size = min(size_class(nbytes), limit // 4 * 4)
        native = self._take(size, size, lambda: self._device.make_buffer(size))
        if self.poison:
            self._device.native.queue.write_buffer(native, 0, self._poison(size))
            self._flush()  # mapping would overtake it
        return native, size

    def texture(self, key: TextureKey) -> Any:
        """A native (texture, view) pair. Raises OutOfDeviceMemoryError."""
        width, height, texel = key
        native = self._take(key, width * height * 16, lambda: self._device.make_texture(width, height, texel))
        if self.poison:
            self._device.native.queue.write_texture(
                {"texture": native[0]},
                self._poison(width * height * 16),
                {"bytes_per_row": width * 16, "rows_per_image": height},
                (width, height, 1),
            )
        return native

    def free_bytes(self) -> int:
        """Bytes in the pool that nothing uses."""
        return sum(_bytes_of(key) * len(natives) for key, natives in list(self._free.items()))

    def trim(self) -> None:
        """Give all free memory back to the driver."""
        for key, natives in list(self._free.items()):
            while natives:
                try:
                    native = natives.pop()
                except IndexError:
                    break
                (native[0] if isinstance(native, tuple) else native).destroy()
                self._count(-_bytes_of(key))

    def upload(self, native: Any, data: NDArray[np.uint8]) -> None:
        """Write all of `data` (a multiple of 4 bytes) to the start of a buffer that nobody else can reach yet."""
        if data.nbytes <= SMALL:
            self._device.native.queue.write_buffer(native, 0, data)
            self._device.written = True
            self._queued += data.nbytes
            if self._queued > CHUNK:  # the queue keeps copies of all that was written until the next submit
                self._queued = 0
                self._flush()
        elif self._device.mappable:
            self._map(native, "WRITE", 0, data.nbytes)
            try:
                copy_bytes(self._device.provider.writable(native, data.nbytes), data)
            finally:
                native.unmap()
        else:
            for start in range(0, data.nbytes, CHUNK):
                part = data[start : start + CHUNK]
                staging = self.staged(part)
                self._copy(staging, 0, native, start, part.nbytes)
                self.unstage(staging)

    def staged(self, data: NDArray[np.uint8]) -> Any:
        """A staging buffer with these bytes, for a copy that its taker encodes; `unstage` takes it back."""
        staging = self._stage("write", size_class(data.nbytes))
        copy_bytes(self._device.provider.writable(staging, data.nbytes), data)
        staging.unmap()
        return staging

    def unstage(self, staging: Any) -> None:
        """A staging buffer of `staged`, once what was encoded is submitted."""
        self._staging.setdefault(("write", staging.size), []).append(staging)

    def receiver(self, nbytes: int) -> Any:
        """A staging buffer for a copy from the device; `receive` reads it and takes it back."""
        return self._stage("read", size_class(nbytes))

    def download(
        self, native: Any, offset: int, nbytes: int, into: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """A copy of `nbytes` bytes at `offset`, both multiples of 4, after all that was submitted before."""
        found = np.empty(nbytes, np.uint8) if into is None else into
        if self._device.mappable:
            start = offset // 8 * 8  # what a mapping may start at
            if self._device.written:
                self._flush()  # mapping would overtake the queue's own writes
            self._device.wait()  # first, so that the lock is held for the copy alone
            with self._device.lock:
                self._map(native, "READ_NOSYNC", start, offset + nbytes - start)
                try:
                    view = native.read_mapped(start, offset + nbytes - start, copy=False)
                    copy_bytes(found, np.frombuffer(view, np.uint8)[offset - start :])
                finally:
                    native.unmap()
            return found
        waiting: deque[tuple[Any, NDArray[np.uint8]]] = deque()
        for start in range(0, nbytes, CHUNK):
            part = found[start : start + CHUNK]
            staging = self._stage("read", size_class(part.nbytes))
            self._copy(native, offset + start, staging, 0, part.nbytes)
            waiting.append((staging, part))
            if len(waiting) == CHUNKS:  # the device copies the next ones while the host copies this one
                self.receive(*waiting.popleft())
        while waiting:
            self.receive(*waiting.popleft())
        return found

    def _flush(self) -> None:
        self._device.submit(self._device.native.create_command_encoder())

    def receive(self, staging: Any, part: NDArray[np.uint8]) -> None:
        """Copy what a receiver gets to `part`, once the copy to it, submitted before, is done.

        It is mapped here and no sooner: while a mapping is waited for, wgpu-native lets no thread submit.
        """
        self._map(staging, "READ_NOSYNC", 0, part.nbytes)
        copy_bytes(part, np.frombuffer(staging.read_mapped(0, part.nbytes, copy=False), np.uint8))
        staging.unmap()
        self._staging.setdefault(("read", staging.size), []).append(staging)

    def _map(self, native: Any, mode: str, offset: int, nbytes: int) -> None:
        """Map, and leave nothing mapped when the wait is interrupted: a later submit would end the process."""
        promise = native.map_async(mode, offset, nbytes)
        try:
            self._device.provider.settle(self._device.native, promise)
        except KeyboardInterrupt:
            promise.sync_wait()
            native.unmap()
            raise

    def _copy(self, source: Any, offset: int, destination: Any, start: int, nbytes: int) -> None:
        encoder = self._device.native.create_command_encoder()
        encoder.copy_buffer_to_buffer(source, offset, destination, start, nbytes)
        self._device.submit(encoder)

    def _stage(self, way: Literal["read", "write"], size: int) -> Any:
        """A staging buffer that nobody uses, mapped where it is for writing."""
        free = self._staging.get((way, size), [])
        if len(free) > (CHUNKS - 1 if way == "write" else 0):  # the oldest write has had time to reach the device
            try:
                native = free.pop(0)
            except IndexError:
                pass
            else:
                if way == "write":
                    self._map(native, "WRITE", 0, size)
                return native
        usage = self._device.provider.module.BufferUsage
        flags = usage.MAP_WRITE | usage.COPY_SRC if way == "write" else usage.MAP_READ | usage.COPY_DST
        return self._make(
            0, lambda: self._device.native.create_buffer(size=size, usage=flags, mapped_at_creation=way == "write")
        )

    def _take(self, key: int | TextureKey, nbytes: int, make: Callable[[], Any]) -> Any:
        try:
            native = self._free[key].pop()
        except (KeyError, IndexError):
            native = self._make(nbytes, make)
        self._used[id(native)] = native
        return native

    def _make(self, nbytes: int, make: Callable[[], Any]) -> Any:
        free = self.free_bytes()
        self._peak = max(self._peak, self.reserved - free + nbytes)
        if free > 2 * self._peak + SPARE:  # sizes that nobody asks for any more
            self.trim()
        for attempt in (1, 2):
            try:
                native = make()
            except self._device.provider.module.GPUError as error:
                if "lost" in str(error).lower():
                    raise
                if attempt == 1:
                    self.trim()
                    continue
                profile = self._device.profile
                raise OutOfDeviceMemoryError(
                    f"{nbytes:,} bytes could not be had on {profile.name}: {self.reserved:,} are in use, one buffer "
                    f"may have {profile.limits.buffer_bytes:,}. Drop Arrays that are no longer needed. ({error})"
                ) from error
            self._count(nbytes)
            return native
        raise AssertionError("the second attempt returns or raises")

    def _count(self, nbytes: int) -> None:
        with self._counting:
            self.reserved += nbytes

    def _poison(self, nbytes: int) -> NDArray[np.uint8]:
        if self._poison_block.nbytes < nbytes:
            self._poison_block = np.full(nbytes, 0xFF, np.uint8)
        return self._poison_block[:nbytes]


def _bytes_of(key: int | TextureKey) -> int:
    return key if isinstance(key, int) else key[0] * key[1] * 16
