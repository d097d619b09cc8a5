"""The prompt to explain, and longer ones of the same text."""

from __future__ import annotations

from ridgeline.errors import RequestError
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer


def prompt_ids(tokenizer: Tokenizer, text: str, *, raw: bool) -> list[int]:
    """Token ids of `text`, through the chat template unless `raw`.

    Raises:
        RequestError: the text is empty or can't be encoded, or the model has no chat template.
    """
    if not text.strip():
        raise RequestError("prompt", text, "give some text")
    if raw:
        return list(tokenizer.encode_prompt(text))
    return list(
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
    )


def prompt_ids_of_length(tokenizer: Tokenizer, text: str, num_tokens: int, *, raw: bool) -> list[int]:
    """A prompt of exactly `num_tokens`: the text again and again, cut in the middle.

    Raises:
        RequestError: as `prompt_ids`, or the text alone is longer.
    """
    ids = prompt_ids(tokenizer, text, raw=raw)
    if len(ids) > num_tokens:
        raise RequestError(
            "context", num_tokens, f"the prompt alone has {len(ids)} tokens; give at least that"
        )
    repeated = text
    while len(ids) < num_tokens:
        repeated = f"{repeated} {repeated}"
        ids = prompt_ids(tokenizer, repeated, raw=raw)
    num_first = num_tokens - num_tokens // 2
    return ids[:num_first] + ids[len(ids) - num_tokens // 2 :]
