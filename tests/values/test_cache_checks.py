"""Checks that remember a page table say of every call what those say that look through it each time."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from wgattn._cache_checks import TableCheck, check_pages, check_room, check_written
from wgattn._cache_pages import _rooms, own_pages

SIZE, PAGES = 8, 12  # tokens a page, pages of the pool


def said(test: Any, *values: Any) -> str:
    """The error of a check; empty where there is none."""
    try:
        test(*values)
    except ValueError as error:
        return str(error)
    return ""


def each_time(tokens: int, table: np.ndarray, lengths: np.ndarray, counts: np.ndarray | None = None) -> None:
    check_pages(table, PAGES)
    check_room(table, lengths, np.full(len(lengths), tokens) if counts is None else counts, SIZE, PAGES)


@pytest.mark.parametrize("counted", [False, True])
def test_room_in_tables_that_stay_and_change(counted: bool):
    r = np.random.default_rng(counted)
    agreed = {"": 0}
    for _ in range(60):
        B, tokens = int(r.integers(1, 4)), int(r.integers(1, 12))
        check = partial(check_written, tokens, SIZE, PAGES)
        for _ in range(3):
            own = r.permutation(PAGES)[: B * 4].reshape(B, -1)[:, :4]
            table = np.where(r.random(own.shape) < 0.1, -1, own).astype(np.int32)
            if r.random() < 0.3:
                table[0] = table[-1]
            for _ in range(12):
                lengths = r.integers(0, 4 * SIZE - tokens + 1, B).astype(np.int32)
                counts = r.integers(0, tokens + 1, B).astype(np.int32) if counted else None
                given = (table, lengths) if counts is None else (table, lengths, counts)
                wanted = said(each_time, tokens, *given)
                assert said(check, *given) == wanted
                kind = next((word for word in ("no page", "shares") if word in wanted), wanted)
                agreed[kind] = agreed.get(kind, 0) + 1
    assert set(agreed) == {"", "no page", "shares"}
    assert agreed[""] > 200


def test_a_table_is_looked_through_again_once_it_is_another():
    check, table = TableCheck(PAGES), np.array([[0, 1], [2, -1]], np.int32)
    check(table)
    check(table)
    assert "entry (1, 1) is 12" in said(check, np.array([[0, 1], [2, 12]], np.int32))
    assert "entry (0, 0) is -2" in said(check, table - 2)


def test_the_pages_that_a_sequence_has_for_itself():
    table = np.array([[3, 0, 1, -1], [3, 5, 6, 7], [-1, -1, -1, -1]], np.int32)
    first, end = own_pages(table, np.array([1, 3, 0]), PAGES)
    assert first.tolist() == [1, 1, 1]
    assert end.tolist() == [3, 4, 0]
    _, end = own_pages(table, np.array([0, 4, 3]), PAGES)
    assert end.tolist() == [0, 4, 3], "shared, behind the last one, and none"


def test_what_is_kept_of_a_table_goes_with_it():
    table = np.array([[0, 1]], np.int32)
    check_written(1, SIZE, PAGES, table, np.array([3], np.int32))
    number = id(table)
    assert _rooms[number].end == [2 * SIZE]
    del table
    assert number not in _rooms
