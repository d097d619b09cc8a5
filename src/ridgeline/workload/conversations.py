"""Datasets of texts: ShareGPT's JSON and our own JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random

from ridgeline.errors import ConfigError
from ridgeline.workload.load_request import LoadRequest, Workload

MIN_TOKENS, MAX_PROMPT_TOKENS, MAX_TOKENS = 4, 1024, 2048
"""Bounds that vLLM's reader of ShareGPT applies."""

_CUSTOM_KEYS = ("prompt", "messages", "output_tokens", "timestamp", "priority", "cache_salt", "slo")


def read_text(path: Path) -> str:
    """A dataset's file.

    Raises:
        ConfigError: it can't be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("dataset_path", str(path), f"can't be read: {error}") from None


def sharegpt_workload(
    text: str,
    count: int,
    *,
    encode: Callable[[str], list[int]],
    output_len: int | None,
    rng: Random,
) -> Workload:
    """At most `count` conversations of ShareGPT's JSON array, in an order shuffled by `rng`.

    Turn 0 is the prompt and turn 1 the answer, whatever `from` says. Left out are entries with less than two
    turns, prompts of < 4 or > 1,024 tokens, answers of < 4 (unless `output_len` is given), sums > 2,048.

    Raises:
        ConfigError: the text is not such an array, or nothing of it is left.
    """
    conversations = [turns for turns in map(_turns, _array(text)) if len(turns) >= 2]
    num_short = 0
    rng.shuffle(conversations)
    requests: list[LoadRequest] = []
    for prompt, answer, *_ in conversations:
        if len(requests) == count:
            break
        num_prompt_tokens = len(encode(prompt))
        num_output_tokens = output_len if output_len is not None else len(encode(answer))
        if not _is_taken(num_prompt_tokens, num_output_tokens, checks_output=output_len is None):
            num_short += 1
            continue
        requests.append(
            LoadRequest(
                prompt=prompt, num_prompt_tokens=num_prompt_tokens, num_output_tokens=num_output_tokens
            )
        )
    if not requests:
        raise ConfigError("dataset_path", "ShareGPT", "holds no conversation within the length bounds")
    return Workload(requests, _notes(len(requests), count, num_short))


def _is_taken(num_prompt_tokens: int, num_output_tokens: int, *, checks_output: bool) -> bool:
    if num_prompt_tokens < MIN_TOKENS or (checks_output and num_output_tokens < MIN_TOKENS):
        return False
    return num_prompt_tokens <= MAX_PROMPT_TOKENS and num_prompt_tokens + num_output_tokens <= MAX_TOKENS


def _notes(num_taken: int, count: int, num_left_out: int) -> list[str]:
    notes = []
    if num_left_out:
        notes.append(f"{num_left_out} conversations left out by vLLM's length bounds")
    if num_taken < count:
        notes.append(f"the dataset gives {num_taken} requests, {count} were asked for; none is repeated")
    return notes


def _array(text: str) -> list[object]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "; JSON lines are --dataset custom" if text.lstrip().startswith("{") else ""
        raise ConfigError("dataset_path", "ShareGPT", f"is not one JSON array: {error}{hint}") from None
    if not isinstance(document, list):
        raise ConfigError("dataset_path", "ShareGPT", "must be one JSON array of conversations")
    return document


def _turns(entry: object) -> list[str]:
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list):
        raise ConfigError("dataset_path", entry, "every ShareGPT entry needs a list of conversations")
    values = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
    if not all(isinstance(value, str) for value in values):
        raise ConfigError("dataset_path", entry, "every ShareGPT turn needs a text as its value")
    return [str(value) for value in values]


def custom_workload(lines: Iterable[str], count: int, *, output_len: int | None) -> Workload:
    """At most `count` requests of JSON lines, in their order (of `timestamp`, where they have one).

    Keys: `prompt` (text or token ids) or `messages`; optional `output_tokens`, `timestamp` (seconds),
    `priority`, `cache_salt`, `slo` (limits in ms for this request, as --goodput names them).

    Raises:
        ConfigError: an unknown key, a value of another type, both or neither of prompt and messages.
    """
    requests = [_custom(line, number, output_len) for number, line in enumerate(lines, 1) if line.strip()]
    if not requests:
        raise ConfigError("dataset_path", "custom", "is empty; give one JSON object a line")
    num_timed = sum(request.arrived_at_s is not None for request in requests)
    if num_timed not in (0, len(requests)):
        raise ConfigError("timestamp", f"{num_timed} of {len(requests)}", "give all requests one, or none")
    requests.sort(key=lambda request: request.arrived_at_s or 0.0)
    return Workload(requests[:count], _notes(min(len(requests), count), count, 0))


def _custom(line: str, number: int, output_len: int | None) -> LoadRequest:
    where = f"dataset line {number}"
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(where, line.strip(), f"is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(where, values, "must be an object")
    for key in values:
        if key not in _CUSTOM_KEYS:
            raise ConfigError(
                f"{where}: {key}", values[key], f"is unknown; known are {', '.join(_CUSTOM_KEYS)}"
            )
    if ("prompt" in values) == ("messages" in values):
        raise ConfigError(where, sorted(values), "needs either prompt or messages")
    prompt = _prompt(values.get("prompt"), where) if "prompt" in values else None
    extra = {key: values[key] for key in ("priority", "cache_salt") if values.get(key) is not None}
    return LoadRequest(
        prompt=prompt,
        messages=_messages(values["messages"], where) if "messages" in values else None,
        num_prompt_tokens=len(prompt) if isinstance(prompt, list) else None,
        num_output_tokens=_whole(values, "output_tokens", where) or output_len,
        arrived_at_s=_instant(values.get("timestamp"), where),
        extra=extra,
        slos=_slos(values.get("slo"), where),
    )


def _prompt(value: object, where: str) -> str | list[int]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(each) is int and each >= 0 for each in value):
        return list(value)
    raise ConfigError(f"{where}: prompt", value, "must be a text or a list of token ids, not empty")


def _messages(value: object, where: str) -> Sequence[Mapping[str, object]]:
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return list(value)
    raise ConfigError(f"{where}: messages", value, "must be a list of objects, not empty")


def _whole(values: Mapping[str, object], key: str, where: str) -> int | None:
    value = values.get(key)
    if value is None or (type(value) is int and value >= 1):
        return value
    raise ConfigError(f"{where}: {key}", value, "must be a whole number ≥ 1")


def _instant(value: object, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return float(value)
    raise ConfigError(f"{where}: timestamp", value, "must be seconds, finite and ≥ 0")


def _slos(value: object, where: str) -> Mapping[str, float]:
    if value is None:
        return {}
    if isinstance(value, dict) and all(type(each) in (int, float) and each >= 0 for each in value.values()):
        return {name: float(each) for name, each in value.items()}
    raise ConfigError(f"{where}: slo", value, 'must be limits in ms, as {"ttft": 500}')
