from hypothesis import given
from hypothesis import strategies as st

from ridgeline.tokenizer.special_tokens import SpecialTokens, without_marks

CONTROL = {"<|im_start|>": 1, "<|im_end|>": 2, "<s>": 3, "#": 4, "aba": 5, "</s>": 6}
SPECIAL = SpecialTokens(CONTROL)
PIECES = st.lists(
    st.sampled_from(
        [*CONTROL, "<|", "im_", "end|>", "|>", "<", ">", "s", "/", "a", "b", " ", "\n", "é", "_start"]
    )
)
STRINGS = PIECES.map("".join) | st.text(st.characters(exclude_categories=["Cs"]))


def test_split_finds_tokens_and_keeps_the_text_between():
    assert SPECIAL.split("a<s>b#<|im_end|>") == ["a", 3, "b", 4, 2]
    assert SPECIAL.split("") == []
    assert SpecialTokens({}).split("<s>") == ["<s>"]


@given(STRINGS)
def test_split_loses_nothing(text):
    names = {token_id: name for name, token_id in CONTROL.items()}
    assert "".join(names[part] if isinstance(part, int) else part for part in SPECIAL.split(text)) == text


@given(st.lists(st.tuples(STRINGS, st.sampled_from(["", "both", "left", "right"]))))
def test_no_joint_of_protected_texts_holds_a_control_token(texts_and_trims):
    trims = {"": str, "both": str.strip, "left": str.lstrip, "right": str.rstrip}
    joined = "".join(trims[trim](SPECIAL.protect(text)) for text, trim in texts_and_trims)
    assert not any(isinstance(part, int) for part in SPECIAL.split(joined))
    assert without_marks(joined) == "".join(trims[trim](text) for text, trim in texts_and_trims)


@given(STRINGS, STRINGS)
def test_tokens_around_protected_text_are_still_found(before, after):
    rendered = f"<s>{SPECIAL.protect(before)}<|im_end|>{SPECIAL.protect(after)}#"
    assert [part for part in SPECIAL.split(rendered) if isinstance(part, int)] == [3, 2, 4]


def test_ordinary_text_is_left_as_it_is():
    for text in ["", "hello", " Hi there\n", "user", "x < y", "if a: b"]:
        assert SPECIAL.protect(text) == text
