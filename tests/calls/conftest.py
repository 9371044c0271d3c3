"""Calls of tests have few rows: half of the tests give them the tiles that calls of many rows have."""

import zlib

import pytest

from wgattn._kernels.attention import problem


@pytest.fixture(autouse=True)
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if zlib.crc32(request.node.nodeid.encode()) % 2:
        monkeypatch.setattr(problem, "is_small", lambda *_: False)
