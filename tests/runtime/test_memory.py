"""Bytes go to the device and back unchanged, memory is used again, and what cannot be had is said."""

import gc
import resource

import ml_dtypes
import numpy as np
import pytest

from tests.runtime.programs import affine, chain, row_sums
from wgattn._errors import OutOfDeviceMemoryError
from wgattn._runtime import Buffer, device, download, hostcopy, prepare, set_poison, upload
from wgattn._runtime.memory import Memory

pytestmark = pytest.mark.device


@pytest.fixture(params=["as it is", "staged", "as it is, by threads", "staged, by threads"])
def memory(request, monkeypatch):
    """The device's own way with bytes, and the way by staging buffers, which any device can go; copied by threads."""
    if request.param.startswith("staged"):
        monkeypatch.setattr(device(), "mappable", False)
    if request.param.endswith("threads"):
        monkeypatch.setattr(hostcopy, "THREADS", 4)
        monkeypatch.setattr(hostcopy, "PART", 1 << 16)
    return device().memory


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 255, 65_536, 65_540, 1_000_001, 40_000_003])
def test_bytes_come_back(memory, nbytes):
    content = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    buffer = upload(content)
    assert buffer.nbytes == -(-nbytes // 4) * 4
    np.testing.assert_array_equal(download(buffer, 0, nbytes), content)
    for offset in {0, nbytes // 4, nbytes // 2, nbytes - 1}:
        np.testing.assert_array_equal(download(buffer, offset, nbytes - offset), content[offset:])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.bool_])
def test_any_array(dtype):
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    for given in (x, x.T, x[:, ::2], x[..., 1:3]):
        expected = np.ascontiguousarray(given).reshape(-1).view(np.uint8)
        np.testing.assert_array_equal(download(upload(given), 0, expected.nbytes), expected)


def test_bytes_are_taken_at_once():
    for n in (16, 1 << 20):
        x = np.ones(n, np.float32)
        buffer = upload(x)
        x[:] = 2
        assert (download(buffer).view(np.float32) == 1).all()


def test_read_only_input():
    x = np.arange(1 << 16, dtype=np.float32)
    x.flags.writeable = False
    np.testing.assert_array_equal(download(upload(x)).view(np.float32), x)


def test_a_small_write_is_seen_by_the_next_read(memory):
    for turn in range(20):
        assert (download(upload(np.full(64, turn, np.uint8))) == turn).all()


def test_what_is_uploaded_is_read_in_order(memory):
    """Chunks in flight, more than are kept: each lands in its own place."""
    content = np.arange(100 << 18, dtype=np.uint32)  # 100 MiB
    buffer = upload(content)
    content += 1
    again = upload(content)
    assert (download(buffer).view(np.uint32) == content - 1).all()
    assert (download(again).view(np.uint32) == content).all()


def test_download_outside_of_the_buffer():
    buffer = upload(bytes(16))
    for offset, nbytes in ((-1, 4), (0, 17), (17, 0), (12, 8)):
        with pytest.raises(ValueError, match="of a buffer of 16"):
            download(buffer, offset, nbytes)
    assert download(buffer, 16, 0).shape == (0,)


def test_a_dropped_buffer_is_used_again(memory):
    first = upload(np.zeros(5000, np.float32))
    native = first.native
    del first
    again = upload(np.ones(5001, np.float32))  # of the same size class
    assert again.native is native


def test_a_buffer_that_dies_in_a_cycle_leaves_a_usable_one():
    cycle: list[object] = [upload(np.zeros(6000, np.float32))]
    cycle.append(cycle)
    del cycle
    gc.collect()
    taken = [upload(np.full(6000, i, np.float32)) for i in range(3)]
    for i, buffer in enumerate(taken):
        assert (download(buffer).view(np.float32) == i).all()


def test_more_than_a_buffer_may_have():
    limit = device().profile.limits.buffer_bytes
    asked = limit // 4 * 4 + 4
    told = rf"{asked:,} bytes were asked for.*limit of {limit:,}. Make the arrays smaller, split the call"
    with pytest.raises(OutOfDeviceMemoryError, match=told):
        device().empty(asked)


def test_free_memory_is_given_up_before_a_failure(monkeypatch):
    own = device()
    upload(np.zeros(7777, np.float32))
    assert own.memory.free_bytes() > 0
    make, refused = own.make_buffer, []

    def scarce(size):
        if not refused:
            refused.append(size)
            raise own.provider.module.GPUOutOfMemoryError("no more")
        return make(size)

    monkeypatch.setattr(own, "make_buffer", scarce)
    buffer = own.empty(123_456_768)
    assert refused
    assert buffer.size >= 123_456_768
    assert own.memory.free_bytes() == 0


def test_a_failure_says_how_much(monkeypatch):
    own = device()

    def none(size):
        raise own.provider.module.GPUOutOfMemoryError("no more")

    monkeypatch.setattr(own, "make_buffer", none)
    with pytest.raises(OutOfDeviceMemoryError, match=r"bytes could not be had on .* in use"):
        own.empty(98_765_432)


def test_memory_stays_flat():
    executables = prepare(chain(3000, 5)), prepare(row_sums(16, 40))
    inputs = upload(np.ones(3000, np.float32)), upload(np.ones(40 * 64, np.float32))

    def turn() -> None:
        for executable, given in zip(executables, inputs, strict=True):
            (out,) = executable.run([given])
            assert isinstance(out, Buffer)
            download(out, 0, 16)

    for _ in range(20):
        turn()
    gc.collect()
    reserved, resident = device().memory.reserved, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        turn()
    assert device().memory.reserved == reserved
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident
    assert grown < 16 << 10, f"{grown} KiB more after 2000 runs"


def test_uploads_without_a_run_are_not_piled_up():
    upload(bytes(65_536))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(4000):  # 256 MiB in all
        upload(bytes(65_536))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 128 << 10, f"{grown} KiB more"


def test_sizes_that_are_never_asked_for_again_are_let_go():
    own = Memory(device())
    sizes = [(1 << 20) * step for step in range(8, 80)]  # 3 GiB in all, one after the other
    for size in sizes:
        native, taken = own.buffer(size)
        own.give_back(taken, native)
    assert own.reserved < 4 * sizes[-1]
    own.trim()
    assert own.reserved == 0


def test_many_executables_leave_nothing_behind():
    def use() -> None:
        executable = prepare(affine(2000))
        executable.run([upload(np.ones(2000, np.float32))])

    for _ in range(3):
        use()
    gc.collect()
    reserved = device().memory.reserved
    for _ in range(50):
        use()
    gc.collect()
    assert device().memory.reserved == reserved


def test_poison_reaches_textures_and_goes_away():
    set_poison(True)
    try:
        (out,) = prepare(row_sums(16, 4)).run([upload(np.ones((4, 64), np.float32))])
        assert isinstance(out, Buffer)
        assert (download(out).view(np.float32) == 16).all()
        texture = device().texture(16, 4, "rgba32float")
        read = row_sums(16, 4)
        read = type(read)(read.slots, (1,), (2,), read.commands[1:])
        (out,) = prepare(read).run([texture])
        assert isinstance(out, Buffer)
        assert np.isnan(download(out).view(np.float32)).all()
    finally:
        set_poison(False)
    buffer = device().empty(1000)
    assert buffer.nbytes == 1000
