"""Programs give what their commands say, from one thread or many, and errors of the device are raised."""

import gc
import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.runtime.programs import SCALE_ADD, affine, chain, join, row_sums, scale_add, shader
from wgattn._errors import UnsupportedError, WgattnError
from wgattn._runtime import (
    Buffer,
    BufferSlot,
    CopyBuffer,
    Dispatch,
    Program,
    Range,
    Shader,
    Texture,
    device,
    download,
    is_idle,
    prepare,
    set_poison,
    upload,
    wait,
)

pytestmark = pytest.mark.device


def floats(buffer: Buffer | Texture) -> np.ndarray:
    assert isinstance(buffer, Buffer)
    return download(buffer).view(np.float32)


@pytest.mark.parametrize("n", [1, 63, 1000, 40_000])
def test_one_dispatch(n):
    x = np.random.default_rng(n).random(n, dtype=np.float32)  # no cancellation: a device may fuse the two steps
    (out,) = prepare(affine(n)).run([upload(x)])
    np.testing.assert_allclose(floats(out), 3 * x + 1, rtol=1e-6)


def test_dispatches_run_in_order():
    x = np.arange(500, dtype=np.float32)
    (out,) = prepare(chain(500, 6)).run([upload(x)])
    np.testing.assert_array_equal(floats(out), 64 * x + 63)


def test_copies_join_buffers():
    x, y = np.arange(5, dtype=np.float32), np.arange(9, dtype=np.float32)
    (out,) = prepare(join(5, 9)).run([upload(x), upload(y)])
    np.testing.assert_array_equal(floats(out), np.concatenate([x, y]))


def test_a_copy_between_dispatches_sees_the_first_and_feeds_the_second():
    slots = (BufferSlot(256),) * 3
    n = 64
    commands = scale_add(0, 1, n, 2, 0), CopyBuffer(Range(1, 0, 256), 0, 0), scale_add(0, 2, n, 2, 0)
    x = np.arange(n, dtype=np.float32)
    (out,) = prepare(Program(slots, (0,), (2,), commands)).run([upload(x)])
    np.testing.assert_array_equal(floats(out), 4 * x)


@pytest.mark.parametrize(("width", "height"), [(16, 4), (3, 7), (64, 33)])
def test_buffer_to_texture(width, height):
    pitch = -(-width * 16 // 256) * 64
    rows = np.random.default_rng(0).standard_normal((height, pitch), dtype=np.float32)
    (out,) = prepare(row_sums(width, height)).run([upload(rows)])
    expected = rows[:, : width * 4].reshape(height, width, 4).astype(np.float64).sum(1)
    np.testing.assert_allclose(floats(out).reshape(height, 4), expected, atol=1e-5)


def test_a_texture_is_an_output_and_an_input():
    rows = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
    fill, read = row_sums(16, 4), row_sums(16, 4)
    fill = replace(fill, outputs=(1,), commands=fill.commands[:1], slots=fill.slots[:2])
    (texture,) = prepare(fill).run([upload(rows)])
    assert isinstance(texture, Texture)
    assert texture.nbytes == rows.nbytes
    read = Program(read.slots, (1,), (2,), read.commands[1:])
    (out,) = prepare(read).run([texture])
    np.testing.assert_allclose(floats(out).reshape(4, 4), rows.reshape(4, 16, 4).sum(1), atol=1e-5)


def test_constants_are_there_at_every_run():
    n = 100
    constant = np.arange(n, dtype=np.float32)
    program = Program((BufferSlot(400),) * 2, (), (1,), (scale_add(0, 1, n, 2, 1),), ((0, constant.tobytes()),))
    executable = prepare(program)
    for _ in range(3):
        np.testing.assert_array_equal(floats(executable.run([])[0]), 2 * constant + 1)


def test_equal_constants_of_programs_are_uploaded_once():
    n = 100_000
    content = np.arange(n, dtype=np.float32).tobytes()
    slots = (BufferSlot(4 * n),) * 2
    programs = [
        Program(slots, (), (1,), (scale_add(0, 1, n, scale, 0),), ((0, bytes(bytearray(content))),)) for scale in (2, 3)
    ]
    first = prepare(programs[0])
    used = device().memory.reserved - device().memory.free_bytes()
    second = prepare(programs[1])
    assert device().memory.reserved - device().memory.free_bytes() - used < 4 * n
    for executable, scale in ((first, 2), (second, 3)):
        np.testing.assert_array_equal(floats(executable.run([])[0]), scale * np.arange(n, dtype=np.float32))
    del first, second, executable
    gc.collect()
    assert content not in device()._constants


def test_a_donated_input_is_written_in_place():
    n = 64
    slots = BufferSlot(256), BufferSlot(256)
    program = Program(slots, (0, 1), (1,), (scale_add(0, 1, n, 1, 5),))
    x, y = upload(np.arange(n, dtype=np.float32)), upload(np.zeros(n, np.float32))
    (out,) = prepare(program).run([x, y])
    assert out is y
    np.testing.assert_array_equal(floats(out), np.arange(n) + 5)


def test_unused_bindings_and_no_parameters():
    slots = BufferSlot(256), BufferSlot(400)
    run = Dispatch(shader("unused", "read", "write"), (Range(0, 0, 256), Range(1, 0, 400)), b"", (2, 1, 1))
    (out,) = prepare(Program(slots, (0,), (1,), (run,))).run([upload(bytes(256))])
    assert isinstance(out, Buffer)
    np.testing.assert_array_equal(download(out).view(np.uint32), np.arange(100))


def test_a_range_binds_a_part_of_a_buffer():
    run = replace(scale_add(0, 1, 64, 2, 0), resources=(Range(0, 256, 256), Range(1, 0, 256)))
    x = np.arange(128, dtype=np.float32)
    (out,) = prepare(Program((BufferSlot(512), BufferSlot(256)), (0,), (1,), (run,))).run([upload(x)])
    np.testing.assert_array_equal(floats(out), 2 * x[64:])


def test_empty_outputs_need_no_command():
    (out,) = prepare(Program((BufferSlot(0),), (), (0,), ())).run([])
    assert isinstance(out, Buffer)
    assert download(out).shape == (0,)


def test_poison_fills_what_no_shader_wrote():
    set_poison(True)
    try:
        run = replace(scale_add(0, 1, 64, 1, 0), resources=(Range(0, 0, 256), Range(1, 0, 512)))
        program = Program((BufferSlot(512), BufferSlot(512)), (0,), (1,), (run,))
        (out,) = prepare(program).run([upload(np.ones(128, np.float32))])
        found = floats(out)
        assert (found[:64] == 1).all()
        assert np.isnan(found[64:]).all()
    finally:
        set_poison(False)


def test_eight_threads_at_once():
    executable = prepare(chain(3000, 4))
    wrong: list[str] = []

    def work(seed: int) -> None:
        own = prepare(affine(20_000 + seed))
        for turn in range(12):
            x = np.random.default_rng(100 * seed + turn).integers(0, 1000, 3000).astype(np.float32)
            big = np.full(20_000 + seed, turn, np.float32)
            (out,) = executable.run([upload(x)])
            (other,) = own.run([upload(big)])
            if not np.array_equal(floats(out), 16 * x + 15):
                wrong.append(f"chain, thread {seed}, turn {turn}")
            if not np.array_equal(floats(other), 3 * big + 1):
                wrong.append(f"affine, thread {seed}, turn {turn}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(t.is_alive() for t in threads)
    assert wrong == []


def test_one_buffer_read_by_threads_that_also_run_on_it():
    x = np.arange(100_000, dtype=np.float32)
    shared, executable, wrong = upload(x), prepare(affine(100_000)), []

    def work() -> None:
        for _ in range(10):
            (out,) = executable.run([shared])
            if not (np.array_equal(floats(shared), x) and np.array_equal(floats(out), 3 * x + 1)):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(t.is_alive() for t in threads)
    assert wrong == []


def test_wait_and_is_idle():
    """https://github.com/pygfx/wgpu-py/pull/518: with nothing submitted there is nothing to wait for"""
    executable = prepare(chain(100_000, 8))
    executable.run([upload(np.zeros(100_000, np.float32))])
    wait()
    assert is_idle()
    wait()
    assert bytes(download(upload(b"1234"))) == b"1234"


def test_work_in_flight_is_not_idle():
    executable, x = prepare(chain(2_000_000, 10)), upload(np.zeros(2_000_000, np.float32))
    executable.run([x])
    wait()
    seen = []
    for _ in range(20):
        executable.run([x])
        seen.append(is_idle())
    wait()
    assert not all(seen)


def test_bind_groups_are_found_again():
    executable, x = prepare(chain(4000, 6)), upload(np.zeros(4000, np.float32))
    for _ in range(12):
        (out,) = executable.run([x])
    assert isinstance(out, Buffer)
    assert len(executable._bound._groups) <= 3


def test_gpu_seconds_come_from_timestamps():
    executable = prepare(chain(10_000, 3))
    seconds = executable.gpu_seconds([upload(np.zeros(10_000, np.float32))], repeat=3)
    if device().profile.timestamps:
        assert seconds is not None
        assert 0 < seconds < 10
    else:
        assert seconds is None


def test_memory_by_use():
    assert prepare(chain(1000, 3)).memory() == {
        "inputs": 4000,
        "outputs": 4000,
        "constants": 0,
        "parameters": 256,
        "scratch": 8000,
        "textures": 0,
    }
    assert prepare(row_sums(16, 4)).memory()["textures"] == 1024


def test_wgsl_that_does_not_compile_names_the_shader():
    bad = Shader("broken_kernel", "fn broken(", ("read", "write"))
    program = affine(64)
    run = replace(program.commands[0], shader=bad)
    with pytest.raises(WgattnError, match=r"broken_kernel(.|\n)*pars"):
        prepare(replace(program, commands=(run,)))


def test_bindings_that_do_not_fit_the_wgsl_are_an_error():
    swapped = Shader("swapped", SCALE_ADD.source, ("write", "read"))
    run = replace(affine(64).commands[0], shader=swapped)
    with pytest.raises(WgattnError, match="swapped did not compile"):
        prepare(Program((BufferSlot(256),) * 2, (0, 1), (1,), (run,)))


def test_a_feature_that_is_not_there():
    run = replace(affine(64).commands[0], shader=replace(SCALE_ADD, features=frozenset({"quantum"})))
    with pytest.raises(UnsupportedError, match="scale_add needs quantum"):
        prepare(replace(affine(64), commands=(run,)))


def test_an_invalid_submit_raises_and_the_next_is_right():
    run = replace(scale_add(0, 0, 64, 1, 0))
    with pytest.raises(WgattnError, match="refused to submit"):
        prepare(Program((BufferSlot(256),), (0,), (0,), (run,))).run([upload(bytes(256))])
    (out,) = prepare(affine(64)).run([upload(np.ones(64, np.float32))])
    assert (floats(out) == 4).all()


def test_inputs_are_checked():
    executable = prepare(affine(100))
    with pytest.raises(WgattnError, match="takes 1 inputs, 0 are given"):
        executable.run([])
    with pytest.raises(WgattnError, match="input slot 0 takes"):
        executable.run([upload(bytes(256))])
    executable.run([upload(bytes(388))])
    texture = device().texture(4, 4, "rgba32float")
    with pytest.raises(WgattnError, match="input slot 0 takes"):
        executable.run([texture])
