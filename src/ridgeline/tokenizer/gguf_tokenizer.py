"""Tokenizer: text to ids and back with the vocabulary that a GGUF file carries.

Byte-level BPE (`gpt2`) and SentencePiece's BPE (`llama`), on the `tokenizers` library. Ids are those of
HF's fast tokenizers without added tokens.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, SupportsIndex

import tokenizers

from ridgeline.errors import ConfigError, ContextLengthError, ModelFileError, RequestError
from ridgeline.tokenizer.byte_level import (
    build_byte_level,
    byte_level_bound,
    byte_level_bytes,
    find_pre_tokenizer,
)
from ridgeline.tokenizer.chat_messages import (
    checked_messages,
    checked_text,
    checked_variables,
    mapped_text,
)
from ridgeline.tokenizer.sentencepiece import (
    build_sentencepiece,
    has_space_prefix,
    sentencepiece_bound,
    sentencepiece_bytes,
)
from ridgeline.tokenizer.special_tokens import END_MARK, SpecialTokens, without_marks
from ridgeline.tokenizer.text_bound import TextBound
from ridgeline.tokenizer.vocabulary import TokenType, Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from ridgeline.tokenizer.chat_template import ChatTemplate


_MAX_CHARACTER_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class _Scheme:
    """What one kind of vocabulary does its own way."""

    build: Callable[[Vocabulary], tokenizers.Tokenizer]
    token_bytes: Callable[[str, int], bytes]
    text_bound: Callable[[Vocabulary], TextBound | None]
    adds_bos: Callable[[Vocabulary], bool]
    has_space_prefix: Callable[[Vocabulary], bool]


_SCHEMES: Mapping[str, _Scheme] = MappingProxyType(
    {
        "gpt2": _Scheme(
            build=build_byte_level,
            token_bytes=byte_level_bytes,
            text_bound=byte_level_bound,
            adds_bos=lambda vocabulary: find_pre_tokenizer(vocabulary).adds_bos,
            has_space_prefix=lambda _: False,
        ),
        "llama": _Scheme(
            build=build_sentencepiece,
            token_bytes=sentencepiece_bytes,
            text_bound=sentencepiece_bound,
            adds_bos=lambda _: True,
            has_space_prefix=has_space_prefix,
        ),
    }
)
"""`tokenizer.ggml.model` → its ways; `adds_bos` decides where the file doesn't (as llama.cpp does)."""


def build_tokenizer(
    metadata: Mapping[str, object],
    *,
    path: Path,
    chat_template: str | None = None,
    now: Callable[[], datetime] = datetime.now,
) -> Tokenizer:
    """The tokenizer that a GGUF file's metadata describes.

    `chat_template` (Jinja2 text) takes the place of the file's own; `now` is the local time that a
    template may ask for. A broken template in the file is an error only once a chat needs it.

    Raises:
        ModelFileError: the tokenizer's metadata is broken, incomplete or of an unsupported kind.
        ConfigError: `chat_template` is broken; names the line.
    """
    vocabulary = read_vocabulary(metadata, path=path)
    names = {"bos_token": vocabulary.bos_token_id, "eos_token": vocabulary.eos_token_id}
    special_tokens = {name: vocabulary.tokens[i] for name, i in names.items() if i is not None}
    if chat_template is None:
        load = partial(_file_template, metadata, path, special_tokens=special_tokens, now=now)
        return Tokenizer(vocabulary, load_chat_template=load)
    from ridgeline.tokenizer.chat_template import ChatTemplate

    template = ChatTemplate(chat_template, special_tokens=special_tokens, now=now)
    return Tokenizer(vocabulary, load_chat_template=lambda: template)


def _file_template(
    metadata: Mapping[str, object],
    path: Path,
    *,
    special_tokens: Mapping[str, str],
    now: Callable[[], datetime],
) -> ChatTemplate | None:
    # Jinja2 costs more to import than a vocabulary to build, and raw prompts don't need it.
    from ridgeline.tokenizer.chat_template import ChatTemplate

    keys = ("tokenizer.chat_template", "tokenizer.chat_template.default")
    source = next((metadata[key] for key in keys if key in metadata), None)
    if source is None:
        return None
    remedy = "give another one with --chat-template FILE"
    if not isinstance(source, str):
        raise ModelFileError(path, f"tokenizer.chat_template is {type(source).__name__}, not str", remedy)
    try:
        return ChatTemplate(source, special_tokens=special_tokens, now=now)
    except ConfigError as error:
        raise ModelFileError(
            path, f"tokenizer.chat_template: {error.remedy} ({error.value})", remedy
        ) from None


class Tokenizer:
    """A vocabulary at work. Immutable: any number of threads may share one.

    Made by `build_tokenizer`.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, load_chat_template: Callable[[], ChatTemplate | None]
    ) -> None:
        scheme = _SCHEMES[vocabulary.model]
        self._vocabulary = vocabulary
        self._spell = scheme.token_bytes
        self._load_chat_template = load_chat_template
        self._plain = scheme.build(vocabulary)
        user_defined = [vocabulary.tokens[i] for i in vocabulary.ids_of_type(TokenType.USER_DEFINED)]
        self._plain.add_tokens(
            [tokenizers.AddedToken(text, normalized=False) for text in user_defined if text]
        )
        special = vocabulary.ids_of_type(TokenType.CONTROL, TokenType.UNKNOWN)
        self._special_tokens = SpecialTokens({vocabulary.tokens[i]: i for i in special}, user_defined)
        self._bytes: list[bytes | None] = [None] * len(vocabulary.tokens)

        self.vocab_size: int = len(vocabulary.tokens)
        self.bos_token_id: int | None = vocabulary.bos_token_id
        self.eos_token_id: int | None = vocabulary.eos_token_id
        self.eos_token_ids: frozenset[int] = vocabulary.eos_token_ids
        self.special_token_ids: frozenset[int] = frozenset(special)
        self.adds_space_prefix: bool = scheme.has_space_prefix(vocabulary)
        self.add_bos_token: bool = _adds(vocabulary, "bos", by_default=scheme.adds_bos(vocabulary))
        self.add_eos_token: bool = _adds(vocabulary, "eos", by_default=False)

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        """Ids of `text` alone, without BOS or EOS.

        Control tokens written in the text become their ids; with `parse_special` false they are text.

        Raises:
            RequestError: `text` is no text, or holds half a surrogate pair.
        """
        if not isinstance(text, str):
            raise RequestError("prompt", text, "must be text")
        text = checked_text(text, "prompt")
        return self._encode_parts(self._special_tokens.split(text) if parse_special else [text])

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw prompt: BOS and EOS where the file says so, unless they stand there already."""
        token_ids = self._with_bos(self.encode(text))
        if self.add_eos_token and self.eos_token_id is not None and token_ids[-1:] != [self.eos_token_id]:
            token_ids.append(self.eos_token_id)
        return token_ids

    def check_fits(self, text: str, max_num_tokens: int) -> None:
        """Refuse text of more bytes than so many tokens can stand for, whatever they are.

        Raises:
            ContextLengthError: it is too long; shorter text may be so too, which tokenising tells.
        """
        bound = self._text_bound
        if len(text) * _MAX_CHARACTER_BYTES <= max_num_tokens or bound is None:
            return
        num_bytes, max_bytes = bound.num_bytes(text), bound.max_token_bytes
        if num_bytes > max_num_tokens * max_bytes:
            remedy = (
                f"can't be told in {max_num_tokens} tokens, none of which has more than {max_bytes} bytes"
            )
            raise ContextLengthError("prompt", f"{num_bytes} bytes", remedy)

    @cached_property
    def _text_bound(self) -> TextBound | None:
        return _SCHEMES[self._vocabulary.model].text_bound(self._vocabulary)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD.

        Raises:
            RequestError: an id is outside the vocabulary.
        """
        skipped = self.special_token_ids if skip_special_tokens else frozenset()
        pieces = ((token_id, self.token_bytes(token_id)) for token_id in ids)
        text = b"".join(piece for token_id, piece in pieces if token_id not in skipped).decode(
            errors="replace"
        )
        return text.removeprefix(" ") if self.adds_space_prefix else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for; often no whole character.

        Raises:
            RequestError: the id is outside the vocabulary.
        """
        if type(token_id) is int and 0 <= token_id < self.vocab_size:
            known = self._bytes[token_id]
            return known if known is not None else self._spelled(token_id)
        # NumPy's integers and the like are fine too.
        index = operator.index(token_id) if isinstance(token_id, SupportsIndex) else -1
        if not 0 <= index < self.vocab_size or isinstance(token_id, bool):
            raise RequestError(
                "token_ids", token_id, f"token ids are whole numbers in 0…{self.vocab_size - 1}"
            )
        return self.token_bytes(index)

    def _spelled(self, token_id: int) -> bytes:
        # Two threads may both get here; they write the same value.
        known = self._spell(self._vocabulary.tokens[token_id], self._vocabulary.token_types[token_id])
        self._bytes[token_id] = known
        return known

    def token_text(self, token_id: int) -> str:
        """One token's own text, incomplete UTF-8 shown as U+FFFD.

        Raises:
            RequestError: the id is outside the vocabulary.
        """
        return self.token_bytes(token_id).decode(errors="replace")

    def apply_chat_template(
        self,
        messages: object,
        add_generation_prompt: bool = True,
        *,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
        max_num_tokens: int | None = None,
    ) -> list[int]:
        """Ids of a conversation, ready for the model: control tokens only where the template writes them.

        Begins with BOS exactly once where the file wants one. `messages` is a list of objects with
        `role` and `content`; a control token typed in any of their strings is ordinary text. `tools` are
        what a template that takes them is told, `variables` further names for it.
        `continue_final_message` ends right behind the last message's content instead of a new turn's
        opening. Text that can't be told in `max_num_tokens` is refused before it is tokenised.

        Raises:
            RequestError: a message is malformed, the template refuses them, or there is no template.
            ContextLengthError: as `check_fits`.
            ModelFileError: the file's template is broken.
        """
        opens_turn = add_generation_prompt and not continue_final_message
        given = {**(variables or {}), "tools": list(tools) if tools else None}
        rendered = self._render(messages, opens_turn, continue_final_message, given)
        if max_num_tokens is not None:
            self.check_fits(without_marks(rendered), max_num_tokens)
        return self._with_bos(self._encode_parts(self._special_tokens.split(rendered)))

    def render_chat(
        self,
        messages: object,
        add_generation_prompt: bool = True,
        *,
        continue_final_message: bool = False,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The text that `apply_chat_template` turns into ids, with the same arguments and errors."""
        opens_turn = add_generation_prompt and not continue_final_message
        return without_marks(self._render(messages, opens_turn, continue_final_message, variables))

    @cached_property
    def _chat_template(self) -> ChatTemplate | None:
        return self._load_chat_template()

    @property
    def chat_template_source(self) -> str | None:
        """The text of the chat template, None where there is none."""
        return self._chat_template.source if self._chat_template is not None else None

    @property
    def chat_template_takes_tools(self) -> bool:
        """Whether the chat template says anything of tools."""
        return self._chat_template is not None and self._chat_template.takes_tools

    def _render(
        self,
        messages: object,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, object] | None,
    ) -> str:
        checked = checked_messages(messages)
        if self._chat_template is None:
            remedy = (
                "the model has no chat template: give one with --chat-template FILE, or send a raw prompt"
            )
            raise RequestError("messages", [message["role"] for message in checked], remedy)
        protect = self._special_tokens.protect
        protected = [mapped_text(message, protect) for message in checked]
        if continue_final_message:
            protected[-1]["content"] = f"{protected[-1]['content']}{END_MARK}"
        rendered = self._chat_template.render(
            protected,
            add_generation_prompt=add_generation_prompt,
            variables=mapped_text(checked_variables(variables), protect),
        )
        if not continue_final_message:
            return rendered
        if END_MARK not in rendered:
            remedy = "the model's chat template does not write the last message's content as it is"
            raise RequestError("continue_final_message", True, remedy)
        return rendered[: rendered.rindex(END_MARK)]

    def _encode_parts(self, parts: Sequence[str | int]) -> list[int]:
        token_ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                token_ids.append(part)
            else:
                token_ids += self._encode_plain(without_marks(part))
        return token_ids

    def _encode_plain(self, text: str) -> list[int]:
        # A template may write half a surrogate pair too.
        checked = checked_text(text, "chat_template")
        # A batch of one: only batches let other threads run meanwhile, the engine's among them.
        return self._plain.encode_batch_fast([checked], add_special_tokens=False)[0].ids

    def _with_bos(self, token_ids: list[int]) -> list[int]:
        if self.add_bos_token and self.bos_token_id is not None and token_ids[:1] != [self.bos_token_id]:
            return [self.bos_token_id, *token_ids]
        return token_ids


def _adds(vocabulary: Vocabulary, name: str, *, by_default: bool) -> bool:
    wanted, token_id = {
        "bos": (vocabulary.adds_bos, vocabulary.bos_token_id),
        "eos": (vocabulary.adds_eos, vocabulary.eos_token_id),
    }[name]
    if wanted and token_id is None:
        problem = f"tokenizer.ggml.add_{name}_token is true but {name}_token_id is missing"
        raise ModelFileError(vocabulary.path, problem, "convert the model anew")
    return token_id is not None and (by_default if wanted is None else wanted)
