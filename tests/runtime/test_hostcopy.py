"""Large copies are shared among threads and bring the same bytes, in a forked child and at exit too."""

import os
import subprocess
import sys
import threading
from itertools import pairwise

import numpy as np
import pytest

from wgattn._runtime import hostcopy

PART = 8 * hostcopy.PAGE


@pytest.fixture(params=[1, 2, 4])
def threads(request, monkeypatch):
    monkeypatch.setattr(hostcopy, "THREADS", request.param)
    monkeypatch.setattr(hostcopy, "PART", PART)
    return request.param


@pytest.mark.parametrize("nbytes", [0, 4, PART, 2 * PART - 4, 2 * PART, 3 * PART + 4, 9 * PART + 1000])
def test_parts_cover_all_bytes_once(threads, nbytes):
    parts = hostcopy.parts_of(nbytes)
    assert len(parts) == max(1, min(threads, nbytes // PART))
    assert parts[0][0] == 0
    assert parts[-1][1] == nbytes
    assert all(before[1] == after[0] for before, after in pairwise(parts))
    assert all(start % hostcopy.PAGE == 0 for start, _ in parts)


@pytest.mark.parametrize("nbytes", [4, PART, 2 * PART + 4, 9 * PART + 1000])
def test_the_same_bytes(threads, nbytes):
    source = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    around = np.zeros(nbytes + 8, np.uint8)
    hostcopy.copy_bytes(around[4:-4], source)
    np.testing.assert_array_equal(around[4:-4], source)
    assert not around[:4].any()
    assert not around[-4:].any()


def test_copies_at_once(threads):
    wrong = []

    def work(seed: int) -> None:
        for turn in range(10):
            source = np.full(5 * PART, 10 * seed + turn, np.uint8)
            found = np.empty_like(source)
            hostcopy.copy_bytes(found, source)
            if not np.array_equal(found, source):
                wrong.append((seed, turn))

    running = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert not any(thread.is_alive() for thread in running)
    assert wrong == []


def test_an_interrupt_leaves_no_copy_running(monkeypatch):
    monkeypatch.setattr(hostcopy, "THREADS", 2)
    monkeypatch.setattr(hostcopy, "PART", PART)
    release, done, waits = threading.Event(), [], []
    plain_copy, plain_wait = np.copyto, hostcopy.wait

    def slow_copy(destination, source):
        if threading.current_thread() is not threading.main_thread():
            release.wait(30)
            done.append(1)
        plain_copy(destination, source)

    def interrupted(futures):
        waits.append(1)
        if len(waits) == 1:
            raise KeyboardInterrupt
        release.set()
        return plain_wait(futures)

    monkeypatch.setattr(np, "copyto", slow_copy)
    monkeypatch.setattr(hostcopy, "wait", interrupted)
    source, found = np.ones(2 * PART, np.uint8), np.zeros(2 * PART, np.uint8)
    with pytest.raises(KeyboardInterrupt):
        hostcopy.copy_bytes(found, source)
    assert done == [1]
    np.testing.assert_array_equal(found, source)


LATE = """
import atexit, os, sys
import numpy as np
from wgattn._runtime import hostcopy

hostcopy.THREADS = 4
source = np.arange(1 << 22, dtype=np.uint64).view(np.uint8)

def copy(where):
    found = np.zeros_like(source)
    hostcopy.copy_bytes(found, source)
    os.write(1, (where + " " + str(np.array_equal(found, source)) + chr(10)).encode())  # a line at once

copy("parent")
if {forks}:
    child = os.fork()
    copy("child" if child == 0 else "parent")
    if child:
        assert os.waitpid(child, 0)[1] == 0
else:
    atexit.register(copy, "exit")
"""


if hasattr(os, "fork"):

    def test_a_forked_child_copies():
        found = _run(LATE.format(forks=True))
        assert sorted(found) == ["child True", "parent True", "parent True"]


def test_a_copy_while_the_interpreter_ends():
    assert _run(LATE.format(forks=False)) == ["parent True", "exit True"]


def _run(program: str) -> list[str]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]  # forking with threads warns
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
