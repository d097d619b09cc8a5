import pytest
from hypothesis import given
from hypothesis import strategies as st

MARK, A, B, C, AB, BC, MARK_A, MARK_MARK = range(259, 267)
TEXTS = st.text().filter(lambda text: "▁" not in text)


@pytest.mark.parametrize(
    ("text", "with_prefix", "without_prefix"),
    [
        ("", [], []),
        ("abc", [MARK_A, BC], [A, BC]),  # bc has the best score, so ab never forms
        ("ab", [MARK, AB], [AB]),  # ab before ▁a
        ("a a", [MARK_A, MARK_A], [A, MARK_A]),
        (" a", [MARK, MARK_A], [MARK_A]),
        ("é", [MARK, 3 + 0xC3, 3 + 0xA9], [3 + 0xC3, 3 + 0xA9]),
        ("a\n", [MARK_A, 3 + 10], [A, 3 + 10]),
        ("a<s>ab</s>", [MARK_A, 1, MARK, AB, 2], [A, 1, AB, 2]),
        ("<0x41>", [MARK, *(3 + byte for byte in b"<0x41>")], [3 + byte for byte in b"<0x41>"]),
    ],
)
def test_ids_by_hand(make_sentencepiece, text, with_prefix, without_prefix):
    assert make_sentencepiece().encode(text) == with_prefix
    assert make_sentencepiece(add_space_prefix=True).encode(text) == with_prefix
    assert make_sentencepiece(add_space_prefix=False).encode(text) == without_prefix


def test_control_tokens_as_text_fall_back_to_bytes(sentencepiece):
    assert sentencepiece.encode("a<s>a", parse_special=False) == [MARK_A, 3 + 60, 3 + 115, 3 + 62, A]


@given(TEXTS)
def test_every_text_survives_with_a_space_prefix(sentencepiece, text):
    assert sentencepiece.decode(sentencepiece.encode(text, parse_special=False)) == text


@given(TEXTS)
def test_every_text_survives_without_a_space_prefix(make_sentencepiece, text):
    tokenizer = make_sentencepiece(add_space_prefix=False)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_decode_drops_one_leading_space_only_with_a_prefix(make_sentencepiece, sentencepiece):
    ids = [MARK_A, MARK_A]
    assert sentencepiece.decode(ids) == "a a"
    assert make_sentencepiece(add_space_prefix=False).decode(ids) == " a a"
    assert sentencepiece.decode([1, MARK_A]) == "<s> a"
    assert sentencepiece.decode([1, MARK_A], skip_special_tokens=True) == "a"
    assert sentencepiece.decode([MARK_MARK]) == " "
    assert sentencepiece.token_text(MARK_A) == " a"


def test_bytes_join_into_characters(sentencepiece):
    assert sentencepiece.decode([A, 3 + 0xC3, 3 + 0xA9, 3 + 0xC3]) == "aé\ufffd"
    assert sentencepiece.token_bytes(3 + 0xC3) == b"\xc3"


def test_bos_is_added_unless_the_file_says_no(make_sentencepiece):
    assert make_sentencepiece().encode_prompt("ab") == [1, MARK, AB]
    assert make_sentencepiece().encode_prompt("<s>ab") == [1, MARK, AB]
    assert make_sentencepiece(add_bos_token=False).encode_prompt("ab") == [MARK, AB]


def test_ids_default_to_those_of_sentencepiece(make_sentencepiece):
    tokenizer = make_sentencepiece(bos_token_id=None, eos_token_id=None)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.eos_token_ids) == (1, 2, {2})
    assert tokenizer.special_token_ids == {0, 1, 2}


def test_characters_without_bytes_become_the_unknown_token(make_sentencepiece_metadata, make_sentencepiece):
    metadata = make_sentencepiece_metadata()
    tokenizer = make_sentencepiece(
        tokens=[*metadata["tokenizer.ggml.tokens"][:3], "a", "▁"],
        token_type=[2, 3, 3, 1, 1],
        scores=[0.0] * 5,
    )
    assert tokenizer.encode("aéa") == [4, 3, 0, 3]


def test_user_defined_pieces_are_found_before_anything_else(make_sentencepiece_metadata, make_sentencepiece):
    types = make_sentencepiece_metadata()["tokenizer.ggml.token_type"]
    types[AB] = 4
    assert make_sentencepiece(token_type=types).encode("abc") == [AB, MARK, C]
