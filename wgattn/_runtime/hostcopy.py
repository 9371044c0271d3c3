"""Copies between host arrays, shared among threads where they are large: one thread alone does not fill the memory bus,
nor touch the pages of a new array as fast as they can be had."""

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

THREADS = max(1, min(8, (os.cpu_count() or 1) // 2))  # that copy at once, the caller's own among them
PART = 4 << 20  # bytes that are worth waking a thread for
PAGE = 4096


def copy_bytes(destination: NDArray[np.uint8], source: NDArray[np.uint8]) -> None:
    """Copy all of `source` to `destination`; nothing of it goes on once this returns or raises."""
    shared: list[Future[Any]] = []
    done = 0
    try:
        with suppress(RuntimeError):  # the interpreter is on its way out and starts nothing more
            for start, end in parts_of(source.nbytes)[:-1]:
                shared.append(_workers(os.getpid()).submit(np.copyto, destination[start:end], source[start:end]))
                done = end
        np.copyto(destination[done:], source[done:])
    finally:
        _finish(shared)


def parts_of(nbytes: int) -> list[tuple[int, int]]:
    """Ranges of bytes, one a thread, that meet on page boundaries.

    Example: parts_of(10) is [(0, 10)]; with two threads parts_of(8 << 20) is [(0, 4 << 20), (4 << 20, 8 << 20)].
    """
    count = max(1, min(THREADS, nbytes // PART))
    edges = [nbytes * i // count // PAGE * PAGE for i in range(count)] + [nbytes]
    return list(pairwise(edges))


def _finish(shared: list[Future[Any]]) -> None:
    """Wait for the other threads, through an interrupt too: the memory that they copy may be unmapped next."""
    try:
        wait(shared)
    except KeyboardInterrupt:
        wait(shared)
        raise


@cache
def _workers(pid: int) -> ThreadPoolExecutor:
    """The threads of this process; a forked child has a pid of its own, and none of its parent's threads."""
    return ThreadPoolExecutor(max(THREADS - 1, 1), thread_name_prefix="wgattn-copy")
