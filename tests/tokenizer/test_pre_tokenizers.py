import pytest

from ridgeline.tokenizer.pre_tokenizers import PRE_TOKENIZERS

TEXT = "We'LL pay 12345  €\n\nx"


def words(name, text):
    return [text[start:end] for _, (start, end) in PRE_TOKENIZERS[name].build().pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("default", "gpt-2"), ["We", "'", "LL", " pay", " 12345", " ", " €", "\n", "\n", "x"]),
        (
            ("smollm", "starcoder", "refact", "command-r"),
            ["We", "'", "LL", " pay", " ", "1", "2", "3", "4", "5", " ", " €", "\n", "\n", "x"],
        ),
        (
            ("llama-bpe", "llama3", "llama-v3", "smaug-bpe"),
            ["We", "'LL", " pay", " ", "123", "45", " ", " €\n\n", "x"],
        ),
        (
            ("qwen2", "qwen35", "deepseek-r1-qwen", "stablelm2"),
            ["We", "'LL", " pay", " ", "1", "2", "3", "4", "5", " ", " €\n\n", "x"],
        ),
        (("tekken",), ["We", "'LL", " pay", " ", "1", "2", "3", "4", "5", " ", " €\n\n", "x"]),
        (("deepseek-v3",), ["We", "'LL", " pay", " ", "123", "45", " ", " €\n\n", "x"]),
        (
            ("deepseek-coder",),
            ["We", "'", "LL", " pay", " ", "1", "2", "3", "4", "5", "  ", "€", "\n", "\n", "x"],
        ),
    ],
)
def test_words(names, expected):
    for name in names:
        assert words(name, TEXT) == expected, name


def test_case_changes_cut_words_only_where_the_model_was_trained_so():
    assert words("tekken", "fooBar") == ["foo", "Bar"]
    assert words("llama-bpe", "fooBar") == ["fooBar"]


def test_marks_belong_to_the_word_only_where_the_model_was_trained_so():
    assert words("qwen35", "ab\u0301c") == ["ab\u0301c"]
    assert words("qwen2", "ab\u0301c") == ["ab", "\u0301c"]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_no_character_is_lost(name):
    text = "It's 3½ km,\r\n\t  日本語 الْعَرَبِيَّة 👩‍👩‍👧 x_1 \u00a0\u2003 ﷽ <|a|> " + "".join(
        map(chr, range(1, 0x250))
    )
    assert "".join(words(name, text)) == text
