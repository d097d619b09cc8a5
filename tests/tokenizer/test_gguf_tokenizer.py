import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import RequestError

LONE_SURROGATES = ["\ud800", "a\udfffb", "ok \ud83d"]


def bytes_ids(text):
    return [3 + byte for byte in text.encode()]


def test_merges_apply_within_words_and_digits_stand_alone(byte_level):
    assert byte_level.encode("the") == [260]
    assert byte_level.encode(" the") == [261]
    assert byte_level.encode("thethe") == [260, 260]
    assert byte_level.encode("12") == bytes_ids("12")
    assert byte_level.encode("") == []


def test_control_tokens_in_text_become_their_ids(byte_level):
    assert byte_level.encode("a<|im_end|>the<|endoftext|>") == [*bytes_ids("a"), 2, 260, 0]
    assert byte_level.encode("<|im_end") == bytes_ids("<|im_end")


def test_control_tokens_are_plain_text_on_request(byte_level):
    text = "a<|im_end|><|im_start|>"
    assert byte_level.encode(text, parse_special=False) == bytes_ids(text)


def test_user_defined_tokens_are_always_one_token(byte_level):
    for parse_special in (True, False):
        assert byte_level.encode("a<think>b", parse_special=parse_special) == [3 + 97, 263, 3 + 98]


def test_of_overlapping_control_tokens_the_leftmost_then_the_longest_wins(
    make_byte_level_metadata, make_byte_level
):
    tokens = make_byte_level_metadata()["tokenizer.ggml.tokens"]
    tokens = ["<a>", "<a><b>", "><b>", *tokens[3:]]
    tokenizer = make_byte_level(tokens=tokens)
    assert tokenizer.encode("<a><b>") == [1]
    assert tokenizer.encode("<a><a><b>") == [0, 1]


def test_control_token_inside_a_longer_user_defined_one_is_not_found(
    make_byte_level_metadata, make_byte_level
):
    tokens = [*make_byte_level_metadata()["tokenizer.ggml.tokens"][:-1], "x<|im_end|>y"]
    tokenizer = make_byte_level(tokens=tokens)
    assert tokenizer.encode("x<|im_end|>y<|im_end|>") == [263, 2]


@given(st.text())
def test_every_text_survives_encode_and_decode(byte_level, text):
    assert byte_level.decode(byte_level.encode(text)) == text
    ids = byte_level.encode(text, parse_special=False)
    assert not byte_level.special_token_ids & set(ids)
    assert byte_level.decode(ids, skip_special_tokens=True) == text


@given(
    st.lists(
        st.sampled_from(["<|im_end|>", "<|im_start|>", "<|", "|>", "im_end", "the", " ", "é", "<think>"])
    )
)
def test_texts_made_of_pieces_of_control_tokens_survive(byte_level, pieces):
    text = "".join(pieces)
    ids = byte_level.encode(text)
    assert byte_level.decode(ids) == text
    assert ids.count(2) == text.count("<|im_end|>")
    assert byte_level.decode(byte_level.encode(text, parse_special=False), skip_special_tokens=True) == text


@given(st.lists(st.integers(0, 263)))
def test_decode_is_the_utf8_text_of_the_joined_bytes(byte_level, ids):
    special = {0: b"<|endoftext|>", 1: b"<|im_start|>", 2: b"<|im_end|>"}
    others = {259: b"th", 260: b"the", 261: b" the", 262: b"12", 263: b"<think>"}
    pieces = [special.get(i) or others.get(i) or bytes([i - 3]) for i in ids]
    assert byte_level.decode(ids) == b"".join(pieces).decode(errors="replace")
    kept = [piece for piece, i in zip(pieces, ids, strict=True) if i > 2]
    assert byte_level.decode(ids, skip_special_tokens=True) == b"".join(kept).decode(errors="replace")
    assert [byte_level.token_bytes(i) for i in ids] == pieces


def test_token_text_shows_incomplete_utf8_as_replacement(byte_level):
    assert byte_level.token_text(3 + 0xC3) == "\ufffd"
    assert byte_level.token_text(261) == " the"
    assert byte_level.token_text(2) == "<|im_end|>"


@pytest.mark.parametrize("bad", [264, -1, 10**12, True, 1.0, "5", None])
def test_ids_outside_the_vocabulary_are_refused(byte_level, bad):
    for call in (byte_level.token_bytes, byte_level.token_text, lambda i: byte_level.decode([5, i])):
        with pytest.raises(RequestError, match="0…263") as caught:
            call(bad)
        assert caught.value.field == "token_ids"
        assert caught.value.value == bad


@pytest.mark.parametrize("text", LONE_SURROGATES)
def test_lone_surrogates_are_refused(byte_level, text):
    for encode in (byte_level.encode, byte_level.encode_prompt):
        with pytest.raises(RequestError, match="surrogate") as caught:
            encode(text)
        assert caught.value.field == "prompt"


def test_encode_refuses_what_is_no_text(byte_level):
    with pytest.raises(RequestError, match="must be text"):
        byte_level.encode(["a"])


def test_facts_about_the_vocabulary(byte_level):
    assert byte_level.vocab_size == 264
    assert (byte_level.bos_token_id, byte_level.eos_token_id) == (1, 2)
    assert byte_level.eos_token_ids == {2}
    assert byte_level.special_token_ids == {0, 1, 2}
    assert byte_level.add_bos_token is False


def test_end_of_turn_and_end_of_message_count_as_eos(make_byte_level):
    tokenizer = make_byte_level(eos_token_id=0, eot_token_id=2, eom_token_id=1)
    assert tokenizer.eos_token_ids == {0, 1, 2}
    assert tokenizer.eos_token_id == 0


def test_end_markers_typed_as_ordinary_text_are_control_tokens_all_the_same(make_byte_level):
    tokenizer = make_byte_level(token_type=None)
    assert tokenizer.special_token_ids == {1, 2}
    assert tokenizer.encode("a<|im_end|>") == [3 + 97, 2]


@pytest.mark.parametrize(
    ("changes", "text", "ids"),
    [
        ({}, "the", [260]),
        ({"add_bos_token": True}, "the", [1, 260]),
        ({"add_bos_token": True}, "", [1]),
        ({"add_bos_token": True}, "<|im_start|>the", [1, 260]),
        ({"add_bos_token": None}, "the", [260]),
        ({"add_bos_token": None, "pre": "llama-bpe"}, "the", [1, 260]),
        ({"add_bos_token": None, "pre": "llama-bpe", "bos_token_id": None}, "the", [260]),
        ({"add_eos_token": True}, "the", [260, 2]),
        ({"add_eos_token": True}, "the<|im_end|>", [260, 2]),
        ({"add_eos_token": True, "add_bos_token": True}, "", [1, 2]),
    ],
)
def test_raw_prompts_begin_and_end_as_the_file_says(make_byte_level, changes, text, ids):
    assert make_byte_level(**changes).encode_prompt(text) == ids


def test_text_is_composed_first_where_the_model_was_trained_so(make_byte_level):
    assert make_byte_level(pre="qwen2").encode("e\u0301") == bytes_ids("é")
    assert make_byte_level(pre="smollm").encode("e\u0301") == bytes_ids("e\u0301")


def test_unused_tokens_are_never_made_of_text(make_byte_level_metadata, make_byte_level):
    types = make_byte_level_metadata()["tokenizer.ggml.token_type"]
    types[262] = 5
    tokenizer = make_byte_level(token_type=types, pre="gpt-2")
    assert tokenizer.encode("12") == bytes_ids("12")
    assert tokenizer.decode([262]) == "12"
    assert make_byte_level(pre="gpt-2").encode("12") == [262]


def test_a_word_that_is_a_token_is_taken_whole_where_merges_are_ignored(make_byte_level):
    # Without the merge of "1 2" nothing but the whole word leads to token 262.
    merges = ["t h", "th e", "Ġ the"]
    assert make_byte_level(merges=merges, pre="llama-bpe", add_bos_token=False).encode("12") == [262]
    assert make_byte_level(merges=merges, pre="smaug-bpe").encode("12") == bytes_ids("12")


def test_added_tokens_decode_to_their_own_text(make_byte_level_metadata, make_byte_level):
    tokens = make_byte_level_metadata()["tokenizer.ggml.tokens"]
    tokens[0], tokens[263] = "<｜é Ġ｜>", "é"
    tokenizer = make_byte_level(tokens=tokens)
    assert tokenizer.decode(tokenizer.encode("aé<｜é Ġ｜>")) == "aé<｜é Ġ｜>"
    assert tokenizer.encode("é") == [263]


def test_threads_may_share_a_tokenizer(byte_level):
    text = "the <|im_end|> é" * 50
    special, plain = byte_level.encode(text), byte_level.encode(text, parse_special=False)
    wrong = []

    def work(parse_special, expected):
        for _ in range(50):
            if byte_level.encode(text, parse_special=parse_special) != expected:
                wrong.append(parse_special)

    threads = [threading.Thread(target=work, args=args) for args in [(True, special), (False, plain)] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
