"""The waiting queue's arithmetic, by hand."""

from __future__ import annotations

import pytest

from ridgeline.errors import OverloadedError, RequestError
from ridgeline.server.admission import MAX_RETRY_AFTER_S, Admission, DrainRate, admitted


class SetClock:
    def __init__(self) -> None:
        self.at_s = 0.0

    def now(self) -> float:
        return self.at_s


def full(num_seqs: int = 2, num_waiting: int = 4) -> Admission:
    """Two run, four wait, since second 10."""
    admission = Admission(max_num_seqs=num_seqs, max_num_waiting=num_waiting)
    for _ in range(num_seqs + num_waiting):
        admission.enter(1, 10.0)
    return admission


def refusal(admission: Admission, num_sequences: int, now: float) -> OverloadedError:
    with pytest.raises(OverloadedError) as caught:
        admission.enter(num_sequences, now)
    return caught.value


def test_places_first_then_the_queue_then_no_more() -> None:
    admission = Admission(max_num_seqs=2, max_num_waiting=1)
    waiting = []
    for _ in range(3):
        admission.enter(1, 0.0)
        waiting.append(admission.num_waiting)
    assert waiting == [0, 0, 1]
    assert "1 of 1" in str(refusal(admission, 1, 0.0))
    admission.leave(1, 1.0)
    admission.enter(1, 1.0)
    assert admission.num_sequences == 3


def test_a_request_counts_once_per_sequence() -> None:
    admission = Admission(max_num_seqs=2, max_num_waiting=4)
    admission.enter(4, 0.0)
    assert admission.num_waiting == 2
    refusal(admission, 3, 0.0)
    admission.enter(2, 0.0)
    admission.leave(4, 1.0)
    assert (admission.num_sequences, admission.num_waiting) == (2, 0)


def test_what_never_fits_is_the_callers_mistake() -> None:
    with pytest.raises(RequestError, match="at most 6"):
        Admission(max_num_seqs=2, max_num_waiting=4).enter(7, 0.0)


def test_retry_after_is_the_queue_over_the_measured_rate() -> None:
    admission = full()
    for second in (12.0, 14.0):
        admission.leave(1, second)
        admission.enter(1, second)
    # 2 ended in the 5 s since the queue began: 0.4 a second; the 4 who wait begin within 10 s.
    assert refusal(admission, 1, 15.0).retry_after_s == pytest.approx(10.0)


def test_a_stall_makes_the_estimate_longer() -> None:
    admission = full()
    admission.leave(1, 11.0)
    admission.enter(1, 11.0)
    assert admission.retry_after_s(12.0) == pytest.approx(8.0)
    assert admission.retry_after_s(30.0) == pytest.approx(80.0)


def test_before_anything_ended_as_long_again_as_it_has_been_full() -> None:
    admission = full()
    assert admission.retry_after_s(10.1) == 1.0
    assert admission.retry_after_s(17.0) == pytest.approx(7.0)
    assert admission.retry_after_s(10_000.0) == MAX_RETRY_AFTER_S


def test_what_ended_while_places_were_free_says_nothing_about_the_drain() -> None:
    admission = Admission(max_num_seqs=2, max_num_waiting=4)
    admission.enter(1, 0.0)
    admission.leave(1, 100.0)
    for _ in range(6):
        admission.enter(1, 200.0)
    assert admission.retry_after_s(203.0) == pytest.approx(3.0)


def test_ends_are_forgotten_after_a_minute() -> None:
    rate = DrainRate()
    rate.observe(5, 0, 0.0)
    rate.observe(5, 10, 1.0)
    assert rate.wait_s(5, 50.0) == pytest.approx(25.0)
    assert rate.wait_s(5, 62.0) is None


def test_the_wait_of_a_newcomer() -> None:
    admission = Admission(max_num_seqs=2, max_num_waiting=4)
    admission.enter(1, 0.0)
    assert admission.wait_s(0.0) == 0.0
    for _ in range(4):
        admission.enter(1, 10.0)
    assert admission.wait_s(11.0) is None
    admission.leave(1, 12.0)
    # One ended in 4 s; two wait, so three have to begin.
    assert admission.wait_s(14.0) == pytest.approx(12.0)


def test_places_are_given_back_whatever_happens() -> None:
    admission, clock = Admission(max_num_seqs=1, max_num_waiting=0), SetClock()
    seen = []
    with pytest.raises(ZeroDivisionError), admitted(admission, 1, clock):
        seen.append(admission.num_sequences / 0)
    assert seen == []
    assert admission.num_sequences == 0
    with admitted(admission, 1, clock), pytest.raises(OverloadedError), admitted(admission, 1, clock):
        pass
    assert admission.num_sequences == 0
