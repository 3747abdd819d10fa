"""When launches are recorded and when a recording stands for them. The recorder here is Python's."""

from __future__ import annotations

from collections import deque

import pytest

pytest.importorskip("triton")
from hamburger.kernels import cuda_graphs
from hamburger.kernels.cuda_graphs import CALLS_BEFORE_CAPTURE, MAX_COUNTED, MAX_FAILURES, MAX_GRAPHS, GraphCache


class Played:
    """Instead of a CUDA graph: it makes the launches again when it is played."""

    def __init__(self, start):
        self.start = start

    def replay(self, stream):
        self.start(f"recorded on {stream}")
        return True


@pytest.fixture
def card(monkeypatch):
    """What the card is told, and switches for who else is recording or looking on."""

    class Card:
        capturing, hooked, refuses, recordings = False, False, False, 0

    def recorded(start):
        Card.recordings += 1
        return None if Card.refuses else Played(start)

    monkeypatch.delenv(cuda_graphs.REPLAY_VARIABLE, raising=False)
    monkeypatch.setattr(cuda_graphs, "capture", recorded)
    monkeypatch.setattr(cuda_graphs, "is_capturing", lambda: Card.capturing)
    monkeypatch.setattr(cuda_graphs, "has_launch_hook", lambda: Card.hooked)
    monkeypatch.setattr(cuda_graphs, "_all_graphs", deque())
    return Card


def call(recordings, key):
    """As `Tape.play` does.   ->   how the launches were made"""
    made = []
    if not recordings.play(key, 7):
        made.append("one by one")
        recordings.note(key, lambda stream: made.append(stream))
        return made
    return ["recorded"]


def test_recorded_after_some_calls_and_played_from_then_on(card):
    recordings = GraphCache()
    assert [call(recordings, "a") for _ in range(CALLS_BEFORE_CAPTURE)] == [["one by one"]] * CALLS_BEFORE_CAPTURE
    assert [call(recordings, "a") for _ in range(3)] == [["recorded"]] * 3
    assert call(recordings, "b") == ["one by one"] and card.recordings == 1


def test_the_recording_is_of_the_launches_that_were_noted(card):
    recordings, made = GraphCache(), []
    for _ in range(CALLS_BEFORE_CAPTURE):
        recordings.note("a", made.append)
    recordings.play("a", 7)
    assert made == ["recorded on 7"]


@pytest.mark.parametrize("somebody", ["capturing", "hooked"])
def test_not_while_somebody_else_records_or_looks_on(card, somebody):
    recordings = GraphCache()
    setattr(card, somebody, True)
    for _ in range(2 * CALLS_BEFORE_CAPTURE):
        assert call(recordings, "a") == ["one by one"]
    setattr(card, somebody, False)
    for _ in range(CALLS_BEFORE_CAPTURE):
        call(recordings, "a")
    assert call(recordings, "a") == ["recorded"]
    setattr(card, somebody, True)
    assert call(recordings, "a") == ["one by one"]


def test_a_driver_that_refuses_is_asked_a_few_times(card):
    card.refuses = True
    recordings = GraphCache()
    for _ in range(2 * CALLS_BEFORE_CAPTURE):
        assert call(recordings, "a") == ["one by one"]
    card.refuses = False  # somebody else was recording
    for _ in range(CALLS_BEFORE_CAPTURE):
        call(recordings, "a")
    assert call(recordings, "a") == ["recorded"]
    card.refuses = True
    for key in range(5 * CALLS_BEFORE_CAPTURE):
        for _ in range(CALLS_BEFORE_CAPTURE):
            assert call(recordings, key) == ["one by one"]
    assert card.recordings == 1 + MAX_FAILURES


def test_off_by_a_variable(card, monkeypatch):
    monkeypatch.setenv(cuda_graphs.REPLAY_VARIABLE, "0")
    recordings = GraphCache()
    for _ in range(5 * CALLS_BEFORE_CAPTURE):
        assert call(recordings, "a") == ["one by one"]
    assert card.recordings == 0


def test_the_oldest_recording_of_all_goes_and_may_come_again(card):
    first, *others = (GraphCache() for _ in range(MAX_GRAPHS + 1))
    for recordings in (first, *others):
        for _ in range(CALLS_BEFORE_CAPTURE):
            call(recordings, "a")
    assert call(others[0], "a") == ["recorded"]
    for _ in range(CALLS_BEFORE_CAPTURE):
        assert call(first, "a") == ["one by one"]
    assert call(first, "a") == ["recorded"] and call(others[0], "a") == ["one by one"]
    assert sum(len(recordings.found) for recordings in (first, *others)) == MAX_GRAPHS


def test_a_limit_that_is_lowered_is_kept_from_the_next_recording_on(card, monkeypatch):
    recordings = GraphCache()
    for key in range(6):
        for _ in range(CALLS_BEFORE_CAPTURE):
            call(recordings, key)
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 2)
    for _ in range(CALLS_BEFORE_CAPTURE):
        call(recordings, "one more")
    assert set(recordings.found) == {5, "one more"}


def test_addresses_that_never_repeat_fill_no_memory(card):
    recordings = GraphCache()
    for key in range(5 * MAX_COUNTED):
        call(recordings, key)
    assert len(recordings.seen) <= MAX_COUNTED and card.recordings == 0


def test_another_thread_may_clear_what_was_counted(card):
    class Cleared(dict):  # as soon as something is in it
        def get(self, key, default=None):
            return CALLS_BEFORE_CAPTURE - 1

        def __setitem__(self, key, value):
            pass

    recordings = GraphCache()
    recordings.seen = Cleared()
    recordings.note("key", lambda stream: None)
    assert card.recordings == 1
