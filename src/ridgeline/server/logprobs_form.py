"""Log-probabilities as OpenAI's two endpoints and vLLM write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline.outputs import CompletionOutput, Logprob, LogprobsAtPosition
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer


def chat_logprobs(completion: CompletionOutput, num_top: int, tokenizer: Tokenizer) -> dict[str, object]:
    """`{"content": [{token, logprob, bytes, top_logprobs}]}`, one entry a token."""
    entries = zip(completion.token_ids, completion.logprobs or [], strict=True)
    return {
        "content": [
            {
                **_chat_token(token_id, position[token_id], tokenizer),
                "top_logprobs": [
                    _chat_token(top_id, logprob, tokenizer) for top_id, logprob in _top(position, num_top)
                ],
            }
            for token_id, position in entries
        ]
    }


def completion_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[LogprobsAtPosition | None],
    num_top: int,
    offset: int,
    token_text: Callable[[int], str],
) -> dict[str, object]:
    """`tokens`, `token_logprobs`, `top_logprobs`, `text_offset`; the first text begins at `offset`.

    `positions[i]` is None where a token has no probability: the first of an echoed prompt.
    """
    tokens: list[str] = []
    offsets: list[int] = []
    for token_id in token_ids:
        text = token_text(token_id)
        tokens.append(text)
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": tokens,
        "token_logprobs": [
            position[token_id].logprob if position is not None else None
            for token_id, position in zip(token_ids, positions, strict=True)
        ],
        "top_logprobs": [
            _top_texts(position, num_top, token_id) if position is not None else None
            for token_id, position in zip(token_ids, positions, strict=True)
        ],
        "text_offset": offsets,
    }


def prompt_logprobs_document(
    positions: Sequence[LogprobsAtPosition | None] | None,
) -> list[dict[str, object] | None] | None:
    """vLLM's `prompt_logprobs`: null, then token id → logprob, rank, text."""
    if positions is None:
        return None
    return [
        {
            str(token_id): {"logprob": e.logprob, "rank": e.rank, "decoded_token": e.decoded_token}
            for token_id, e in position.items()
        }
        if position is not None
        else None
        for position in positions
    ]


def _top_texts(position: LogprobsAtPosition, num_top: int, token_id: int) -> dict[str, float]:
    """The best tokens and the one that stands there, `num_top` + 1 at most; of one text the best counts."""
    texts = {position[token_id].decoded_token: position[token_id].logprob}
    for _, entry in reversed(_top(position, num_top)):
        texts[entry.decoded_token] = entry.logprob
    return texts


def _top(position: LogprobsAtPosition, num_top: int) -> list[tuple[int, Logprob]]:
    ranked = sorted(position.items(), key=lambda item: item[1].rank)
    return [item for item in ranked if num_top < 0 or item[1].rank <= num_top]


def _chat_token(token_id: int, entry: Logprob, tokenizer: Tokenizer) -> dict[str, object]:
    return {
        "token": entry.decoded_token,
        "logprob": entry.logprob,
        "bytes": list(tokenizer.token_bytes(token_id)),
    }
