"""Tokenisation equals Hugging Face's on the fixture's strings and chats (`make_tokenizer_oracle.py`)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeline.formats.gguf import open_gguf
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer, build_tokenizer

pytestmark = pytest.mark.golden

FIXTURE = json.loads(
    (Path(__file__).parent / "fixtures" / "tokenizer_cases.json").read_text(encoding="ascii")
)
GROUPS = list(dict.fromkeys(case["group"] for case in FIXTURE["cases"]))


def _cases(group: str) -> list[dict[str, Any]]:
    return [case for case in FIXTURE["cases"] if case["group"] == group]


def _chat_name(chat: dict[str, Any]) -> str:
    return f"{chat['name']}{'' if chat.get('add_generation_prompt', True) else '_no_generation_prompt'}"


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> Iterator[Tokenizer]:
    with open_gguf(model_path) as file:
        yield build_tokenizer(file.metadata, path=model_path)


@pytest.mark.parametrize("group", GROUPS)
def test_ids_equal(tokenizer: Tokenizer, group: str) -> None:
    got = {case["text"]: tokenizer.encode(case["text"]) for case in _cases(group)}
    assert got == {case["text"]: case["ids"] for case in _cases(group)}


@pytest.mark.parametrize("group", GROUPS)
def test_ids_with_control_tokens_as_text_equal(tokenizer: Tokenizer, group: str) -> None:
    got = {case["text"]: tokenizer.encode(case["text"], parse_special=False) for case in _cases(group)}
    assert got == {case["text"]: case.get("plain_ids", case["ids"]) for case in _cases(group)}


@pytest.mark.parametrize("parse_special", [True, False])
@pytest.mark.parametrize("group", GROUPS)
def test_decode_gives_the_text_back(tokenizer: Tokenizer, group: str, parse_special: bool) -> None:
    """`decoded` stands in the fixture only where a character has no token in this vocabulary."""
    got = {
        case["text"]: tokenizer.decode(tokenizer.encode(case["text"], parse_special=parse_special))
        for case in _cases(group)
    }
    assert got == {case["text"]: case.get("decoded", case["text"]) for case in _cases(group)}


def test_only_characters_without_a_token_are_lost() -> None:
    assert {case["group"] for case in FIXTURE["cases"] if "decoded" in case} == {"unknown_bytes"}


@pytest.mark.parametrize("group", GROUPS)
def test_token_bytes_join_to_the_text(tokenizer: Tokenizer, group: str) -> None:
    whole = [case for case in _cases(group) if "decoded" not in case]
    got = [b"".join(tokenizer.token_bytes(i) for i in tokenizer.encode(case["text"])) for case in whole]
    assert got == [case["text"].encode() for case in whole]


@pytest.mark.parametrize("chat", FIXTURE["chats"], ids=_chat_name)
def test_chat_equal(tokenizer: Tokenizer, chat: dict[str, Any]) -> None:
    options = {"add_generation_prompt": chat["add_generation_prompt"]}
    assert tokenizer.render_chat(chat["messages"], **options) == chat["text"]
    assert tokenizer.apply_chat_template(chat["messages"], **options) == chat["ids"]


@pytest.mark.parametrize("chat", FIXTURE["typed_chats"], ids=_chat_name)
def test_typed_control_tokens_are_text(tokenizer: Tokenizer, chat: dict[str, Any]) -> None:
    assert tokenizer.apply_chat_template(chat["messages"]) == chat["ids"]
