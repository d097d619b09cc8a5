"""Token counts of a run: where they come from, and what was asked beside what was counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ridgeline.metrics.client_record import ClientRecord, Outcome


@dataclass(frozen=True, slots=True)
class CountedRecords:
    """Records whose token counts are all filled in, and how they came to be.

    `source`: usage (the server's, for every good request), client_tokenizer, or chunks (one token each).
    """

    records: Sequence[ClientRecord]
    source: str


def count_tokens(
    records: Sequence[ClientRecord], encode: Callable[[str], Sequence[int]] | None
) -> CountedRecords:
    """Fill in what the server's usage did not say: by `encode` where there is one, else chunk by chunk."""
    ok = [record for record in records if record.outcome is Outcome.OK]
    if all(record.num_output_tokens is not None for record in ok):
        source = "usage"
    else:
        source = "client_tokenizer" if encode is not None else "chunks"
    return CountedRecords([_counted(record, encode) for record in records], source)


def _counted(record: ClientRecord, encode: Callable[[str], Sequence[int]] | None) -> ClientRecord:
    num_prompt_tokens = record.num_prompt_tokens
    num_output_tokens = record.num_output_tokens
    if num_prompt_tokens is None and record.outcome is Outcome.OK:
        num_prompt_tokens = record.num_requested_prompt_tokens
    if num_output_tokens is None and record.chunks:
        received = sum(chunk.num_tokens for chunk in record.chunks)
        num_output_tokens = len(encode(record.text)) if encode is not None else received
    return replace(record, num_prompt_tokens=num_prompt_tokens, num_output_tokens=num_output_tokens)


def chunk_tokens(records: Sequence[ClientRecord]) -> tuple[str, int]:
    """(how tokens per chunk are known, tokens more than chunks) over good records.

    usage: the server said; single: as many chunks as tokens; unknown: neither, so ITL is a guess.
    """
    ok = [record for record in records if record.outcome is Outcome.OK and record.chunks]
    if all(record.has_chunk_tokens for record in ok):
        return "usage", 0
    surplus = sum(
        (record.num_output_tokens or 0) - sum(chunk.num_tokens for chunk in record.chunks)
        for record in ok
        if not record.has_chunk_tokens
    )
    is_single = all(
        record.has_chunk_tokens or record.num_output_tokens == len(record.chunks) for record in ok
    )
    return ("single", 0) if is_single else ("unknown", surplus)


def prompt_mismatch(records: Sequence[ClientRecord]) -> str | None:
    """One line that tells how the prompts' lengths differ from those asked for; None: they don't."""
    offs: Counter[int] = Counter()
    for record in records:
        if record.num_requested_prompt_tokens is not None and record.num_prompt_tokens is not None:
            offs[record.num_prompt_tokens - record.num_requested_prompt_tokens] += 1
    if not offs or set(offs) == {0}:
        return None
    total = sum(offs.values())
    if len(offs) == 1:
        return f"the server counted {next(iter(offs)):+d} tokens a prompt over what was asked (a template's)"
    wrong = total - offs[0]
    return (
        f"{wrong} of {total} prompts are of another length than asked, {min(offs):+d}…{max(offs):+d} tokens "
        "by the server's count"
    )
