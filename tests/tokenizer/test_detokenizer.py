import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import RequestError
from ridgeline.tokenizer.detokenizer import Detokenizer

C01 = "é🦙 日本 🇫🇷 ﷽"


def check_join(tokenizer, ids, skip_special_tokens):
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    pieces = []
    for i, token_id in enumerate(ids):
        pieces.append(detokenizer.push(token_id))
        # What is out can only be followed, never changed, by what comes.
        whole = tokenizer.decode(ids[: i + 1], skip_special_tokens=skip_special_tokens)
        assert whole.startswith("".join(pieces))
    pieces.append(detokenizer.finish())
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


@given(st.lists(st.integers(0, 263)), st.booleans())
def test_joined_pieces_are_the_whole_decode(byte_level, ids, skip):
    check_join(byte_level, ids, skip)


@given(
    st.lists(st.sampled_from([1, 2, 3 + 0xE2, 3 + 0x82, 3 + 0xAC, 3 + 0xF0, 3 + 0x9F, 3 + 0xC0, 3 + 0x41])),
    st.booleans(),
)
def test_joined_pieces_are_the_whole_decode_inside_characters(byte_level, ids, skip):
    check_join(byte_level, ids, skip)


@given(st.lists(st.sampled_from([0, 1, 2, 3 + 32, 3 + 0xC3, 3 + 0xA9, *range(259, 267)])), st.booleans())
def test_joined_pieces_are_the_whole_decode_of_sentencepiece(sentencepiece, ids, skip):
    check_join(sentencepiece, ids, skip)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")))
def test_pieces_of_true_text_hold_whole_characters_only(byte_level, text):
    detokenizer = Detokenizer(byte_level)
    pieces = [detokenizer.push(token_id) for token_id in byte_level.encode(text, parse_special=False)]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert detokenizer.finish() == ""


def test_a_character_comes_out_with_its_last_byte(byte_level):
    detokenizer = Detokenizer(byte_level)
    ids = byte_level.encode(C01)
    assert [detokenizer.push(i) for i in ids[:7]] == ["", "é", "", "", "", "🦙", " "]


def test_an_incomplete_tail_becomes_a_replacement_character(byte_level):
    detokenizer = Detokenizer(byte_level)
    assert detokenizer.push(3 + 0xF0) == ""
    assert detokenizer.has_incomplete_character
    assert detokenizer.finish() == "\ufffd"
    assert not detokenizer.has_incomplete_character


def test_skipped_control_tokens_do_not_cut_a_character(byte_level):
    ids = [3 + 0xC3, 2, 3 + 0xA9]
    detokenizer = Detokenizer(byte_level)
    assert [detokenizer.push(i) for i in ids] == ["", "", "é"]
    detokenizer = Detokenizer(byte_level, skip_special_tokens=False)
    assert [detokenizer.push(i) for i in ids] == ["", "\ufffd<|im_end|>", "\ufffd"]


def test_only_the_first_space_of_a_space_prefix_is_dropped(sentencepiece):
    detokenizer = Detokenizer(sentencepiece)
    assert [detokenizer.push(i) for i in (1, 265, 265)] == ["", "a", " a"]


def test_ids_outside_the_vocabulary_are_refused(byte_level):
    with pytest.raises(RequestError) as caught:
        Detokenizer(byte_level).push(264)
    assert caught.value.field == "token_ids"
