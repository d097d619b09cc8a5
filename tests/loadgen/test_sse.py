from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.loadgen.sse import OversizeEventError, SseReader

STREAM = (
    b"\xef\xbb\xbfdata: one\n\n"
    b": a comment\r\n\r\n"
    b"event: x\r\nid: 3\r\ndata:two\r\ndata:  lines\r\n\r\n"
    b"data: cr\rdata\r\r"
    b"retry: 10\n\n"
    b"data: \xf0\x9f\xa6\x99 \xe6\x97\xa5\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [b"one", b"two\n lines", b"cr\n", "🦙 日".encode(), b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_a_stream_cut_anywhere_gives_the_same_events(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    reader = SseReader()
    events = []
    for start, end in itertools.pairwise(edges):
        events += reader.feed(STREAM[start:end])
    assert events + reader.close() == EVENTS


def test_byte_by_byte() -> None:
    reader = SseReader()
    events = [event for index in range(len(STREAM)) for event in reader.feed(STREAM[index : index + 1])]
    assert events == EVENTS


def test_an_event_that_the_end_cuts_short_still_counts() -> None:
    reader = SseReader()
    assert reader.feed(b"data: a\n\ndata: [DONE]") == [b"a"]
    assert reader.close() == [b"[DONE]"]
    assert reader.close() == []


def test_an_empty_line_without_data_is_no_event() -> None:
    assert SseReader().feed(b"\n\n: ping\n\nevent: x\n\n") == []


def test_an_endless_line_is_refused_and_comments_are_not() -> None:
    reader = SseReader(max_event_bytes=100)
    for _ in range(100):
        assert reader.feed(b": keep alive, keep alive\n\n: again\n") == []
    with pytest.raises(OversizeEventError):
        reader.feed(b"data: " + b"x" * 100)


def test_a_line_in_pieces_counts_as_a_whole() -> None:
    reader = SseReader(max_event_bytes=100)
    for _ in range(10):
        assert reader.feed(b"data: 4567") == []
    with pytest.raises(OversizeEventError):
        reader.feed(b"8")
