import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.tokenizer.stop_strings import StopStringMatcher

PIECES = st.lists(st.text("ab\n", max_size=5), max_size=12)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


def run(stop, pieces, include=False):
    matcher = StopStringMatcher(stop, include_stop_str_in_output=include)
    emitted = []
    for piece in pieces:
        match = matcher.push(piece)
        emitted.append(match.text_to_emit)
        if match.matched is not None:
            return emitted, match.matched
    return [*emitted, matcher.finish()], None


def whole_text_oracle(stop, pieces, include):
    """Looks at all of the text after every piece: text shown in the end, and the match."""
    text = ""
    for piece in pieces:
        text += piece
        found = [(text.find(s), -len(s), s) for s in stop if s in text]
        if found:
            start, _, matched = min(found)
            return text[: start + (len(matched) if include else 0)], matched
    return text, None


@given(STOPS, PIECES, st.booleans())
def test_same_as_scanning_the_whole_text(stop, pieces, include):
    emitted, matched = run(stop, pieces, include)
    assert ("".join(emitted), matched) == whole_text_oracle(stop, pieces, include)


@given(STOPS, PIECES)
def test_holds_back_exactly_what_may_begin_a_stop_string(stop, pieces):
    matcher = StopStringMatcher(stop)
    text = shown = ""
    for piece in pieces:
        match = matcher.push(piece)
        if match.matched is not None:
            return
        text += piece
        shown += match.text_to_emit
        held = [n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])]
        assert shown == text[: len(text) - max(held, default=0)]


@pytest.mark.parametrize(("include", "expected"), [(False, "ABC"), (True, "ABCDEFGHIJ")])
def test_no_part_of_a_stop_string_is_shown(include, expected):
    emitted, matched = run(["DEFGHIJ"], ["AB", "CDEF", "G", "HI", "JKL"], include)
    assert emitted[:4] == ["AB", "C", "", ""]
    assert ("".join(emitted), matched) == (expected, "DEFGHIJ")


def test_held_text_is_released_when_the_match_fails_or_the_text_ends():
    assert run(["DEF"], ["AD", "E", "X", "DE"]) == (["A", "", "DEX", "", "DE"], None)


def test_the_earliest_match_wins_then_the_longest():
    assert run(["cd", "bcde", "bc"], ["abcdef"]) == (["a"], "bcde")
    assert run(["x", "c"], ["abc x"]) == (["ab"], "c")


def test_one_stop_may_complete_while_another_is_only_begun():
    assert run(["bcdefg", "d"], ["abc", "d"]) == (["a", "bc"], "d")


def test_nothing_is_emitted_after_a_match():
    matcher = StopStringMatcher(["b"])
    assert matcher.push("abc") == ("a", "b")
    assert matcher.push("more") == ("", "b")
    assert matcher.finish() == ""


def test_no_stop_strings_hold_nothing():
    assert run([], ["a", "", "b"]) == (["a", "", "b", ""], None)


def test_long_stop_strings_are_searched_piece_by_piece():
    stop = "a" * 100_000 + "b"
    matcher = StopStringMatcher([stop, "z" * 100_000])
    for _ in range(100):
        assert matcher.push("a" * 1_001).matched is None
    match = matcher.push("ba")
    assert match.matched == stop
