"""Small vocabularies, as the metadata of a GGUF file would give them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.tokenizer.gguf_tokenizer import Tokenizer, build_tokenizer

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PREFIX = "tokenizer.ggml."

Metadata = dict[str, object]
MetadataMaker = Callable[..., Metadata]
TokenizerMaker = Callable[..., Tokenizer]


def byte_alphabet() -> list[str]:
    """GPT-2's spelling of each byte: itself where printable, else the next free character from 256 on."""
    spelled, free = [], 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            spelled.append(chr(byte))
        else:
            spelled.append(chr(free))
            free += 1
    return spelled


def byte_level_metadata(**changes: object) -> Metadata:
    """0…2 control tokens, 3 + b for byte b, 259 th, 260 the, 261 Ġthe, 262 12, 263 a user-defined <think>.

    A change of None takes the key out; keys without a dot stand under `tokenizer.ggml.`.
    """
    metadata: Metadata = {
        f"{PREFIX}model": "gpt2",
        f"{PREFIX}pre": "smollm",
        f"{PREFIX}tokens": [
            *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
            *byte_alphabet(),
            *("th", "the", "Ġthe", "12", "<think>"),
        ],
        f"{PREFIX}token_type": [3, 3, 3, *[1] * 260, 4],
        f"{PREFIX}merges": ["t h", "th e", "Ġ the", "1 2"],
        f"{PREFIX}bos_token_id": 1,
        f"{PREFIX}eos_token_id": 2,
        f"{PREFIX}add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    return _changed(metadata, changes)


def sentencepiece_metadata(**changes: object) -> Metadata:
    """0 <unk>, 1 <s>, 2 </s>, 3 + b for byte b, then the pieces of `pieces`, 259 on."""
    pieces = {"▁": -9.0, "a": -9.0, "b": -9.0, "c": -9.0, "ab": -1.0, "bc": 0.0, "▁a": -2.0, "▁▁": -3.0}
    metadata: Metadata = {
        f"{PREFIX}model": "llama",
        f"{PREFIX}tokens": ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces],
        f"{PREFIX}token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces)],
        f"{PREFIX}scores": [0.0] * 259 + list(pieces.values()),
        f"{PREFIX}bos_token_id": 1,
        f"{PREFIX}eos_token_id": 2,
    }
    return _changed(metadata, changes)


def _changed(metadata: Metadata, changes: dict[str, object]) -> Metadata:
    for name, value in changes.items():
        key = "tokenizer.chat_template" if name == "chat_template" else f"{PREFIX}{name}"
        if value is None:
            metadata.pop(key, None)
        else:
            metadata[key] = value
    return metadata


@pytest.fixture(scope="session")
def make_byte_level_metadata() -> MetadataMaker:
    return byte_level_metadata


@pytest.fixture(scope="session")
def make_sentencepiece_metadata() -> MetadataMaker:
    return sentencepiece_metadata


@pytest.fixture(scope="session")
def make_byte_level() -> TokenizerMaker:
    """Build the byte-level tokenizer with changes; `template` is the caller's own chat template."""

    def make(template: str | None = None, **changes: object) -> Tokenizer:
        return build_tokenizer(byte_level_metadata(**changes), path=Path("tiny.gguf"), chat_template=template)

    return make


@pytest.fixture(scope="session")
def make_sentencepiece() -> TokenizerMaker:
    def make(**changes: object) -> Tokenizer:
        return build_tokenizer(sentencepiece_metadata(**changes), path=Path("tiny.gguf"))

    return make


@pytest.fixture(scope="session")
def byte_level(make_byte_level: TokenizerMaker) -> Tokenizer:
    return make_byte_level()


@pytest.fixture(scope="session")
def sentencepiece(make_sentencepiece: TokenizerMaker) -> Tokenizer:
    return make_sentencepiece()
