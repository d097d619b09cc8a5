"""Every dataset format, from small files in the shape of the published ones."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from ridgeline.errors import ConfigError
from ridgeline.workload.conversations import custom_workload, read_text, sharegpt_workload
from ridgeline.workload.prompts import PromptMaker
from ridgeline.workload.replay import replay_workload
from ridgeline.workload.token_traces import (
    limit_prompts,
    parse_azure,
    parse_burstgpt,
    parse_mooncake,
    spread_ticks,
)

DATA = Path(__file__).parents[1] / "loadgen" / "data"


def lines(name: str) -> list[str]:
    return read_text(DATA / name).splitlines()


def words(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def test_sharegpt_takes_turns_0_and_1_and_vllms_bounds() -> None:
    text = read_text(DATA / "sharegpt.json")
    found = sharegpt_workload(text, 10, encode=words, output_len=None, rng=Random(0))
    assert {request.prompt for request in found.requests} == {
        "one two three four five",
        "first turn of the other side",
    }
    assert {(r.num_prompt_tokens, r.num_output_tokens) for r in found.requests} == {(5, 6), (6, 7)}
    assert "2 conversations left out" in found.notes[0]
    assert "gives 2 requests, 10 were asked for" in found.notes[1]


def test_sharegpt_with_an_output_length_keeps_curt_answers() -> None:
    text = read_text(DATA / "sharegpt.json")
    found = sharegpt_workload(text, 10, encode=words, output_len=9, rng=Random(0))
    assert {request.num_output_tokens for request in found.requests} == {9}
    assert len(found.requests) == 3


@pytest.mark.parametrize(("prompt", "answer"), [(1025, 10), (1000, 1049), (3, 10)])
def test_sharegpt_bounds(prompt: int, answer: int) -> None:
    turns = [{"from": "human", "value": "a " * count} for count in (prompt, answer)]
    text = json.dumps([{"conversations": turns}])
    with pytest.raises(ConfigError, match="no conversation within"):
        sharegpt_workload(text, 1, encode=words, output_len=None, rng=Random(0))


def test_sharegpt_is_shuffled_by_seed() -> None:
    text = read_text(DATA / "sharegpt.json")
    orders = {
        tuple(
            r.prompt
            for r in sharegpt_workload(text, 9, encode=words, output_len=9, rng=Random(seed)).requests
        )
        for seed in range(12)
    }
    assert len(orders) > 1


@pytest.mark.parametrize(
    "text",
    [
        '{"conversations": []}\n{"conversations": []}',
        "[1]",
        '[{"conversations": [{"value": 3}, {}]}]',
        "",
        "{}",
    ],
)
def test_what_is_no_sharegpt(text: str) -> None:
    with pytest.raises(ConfigError):
        sharegpt_workload(text, 1, encode=words, output_len=None, rng=Random(0))


def test_mooncake() -> None:
    trace = parse_mooncake(lines("mooncake.jsonl"))
    assert [r.arrived_at_s for r in trace.requests] == pytest.approx([0, 0, 2.999, 6.0])
    assert [r.num_prompt_tokens for r in trace.requests] == [1100, 1536, 600, 120_000]
    assert "1 requests have another number of hash_ids" in trace.notes[0]
    assert "ticks" in trace.notes[1]


def test_mooncake_blocks_of_one_id_are_one_text() -> None:
    trace = limit_prompts(parse_mooncake(lines("mooncake.jsonl")), 2000, clips=False)
    assert "1 of 4 prompts dropped" in trace.notes[-1]
    maker = PromptMaker(None, Random(0), as_text=False)
    first, second, third = (r.prompt for r in replay_workload(trace, 9, maker, seed=0).requests)
    assert [len(prompt) for prompt in (first, second, third)] == [1100, 1536, 600]
    assert first[:1024] == second[:1024]
    assert first[1024:] != second[1024:1100]
    assert third[:512] == first[:512]
    again = replay_workload(trace, 9, PromptMaker(None, Random(5), as_text=False), seed=0).requests[0].prompt
    assert again[:1024] == first[:1024]


def test_clipped_prompts_are_kept_and_counted() -> None:
    trace = limit_prompts(parse_mooncake(lines("mooncake.jsonl")), 2000, clips=True)
    assert trace.requests[-1].num_prompt_tokens == 2000
    assert "1 of 4 prompts clipped" in trace.notes[-1]


def test_ticks_are_spread_only_on_request() -> None:
    spread = spread_ticks(parse_mooncake(lines("mooncake.jsonl")))
    assert [r.arrived_at_s for r in spread.requests] == pytest.approx([0, 1.4995, 2.999, 6.0])
    assert any("spread" in note for note in spread.notes)


def test_azure_2023_has_seven_digits() -> None:
    trace = parse_azure(lines("azure_2023.csv"))
    assert [r.arrived_at_s for r in trace.requests] == pytest.approx([0, 0.0519969, 1.02004], abs=1e-6)
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in trace.requests] == [
        (4808, 10),
        (110, 27),
        (14, 6),
    ]
    assert any("1 requests without tokens" in note for note in trace.notes)
    assert any("prefix" in note for note in trace.notes)


def test_azure_2024_mixes_formats_and_zones() -> None:
    trace = parse_azure(lines("azure_2024.csv"))
    assert [r.arrived_at_s for r in trace.requests] == pytest.approx([0, 0.99007, 2.24007], abs=1e-6)


def test_burstgpt_columns_go_by_name() -> None:
    trace = parse_burstgpt(lines("burstgpt_1.csv"))
    assert [(r.arrived_at_s, r.num_prompt_tokens, r.num_output_tokens) for r in trace.requests] == [
        (0, 472, 18),
        (113, 417, 276),
    ]
    newer = parse_burstgpt(lines("burstgpt_2.csv"))
    assert [(r.arrived_at_s, r.num_prompt_tokens, r.num_output_tokens) for r in newer.requests] == [
        (0, 50, 10),
        (1, 100, 20),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,5",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n16/11/2023,5,5",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-16 18:17:03,5,5",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,five,5",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        "",
    ],
)
def test_what_is_no_azure_trace(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_azure(text.splitlines())


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "[1]",
        '{"timestamp": -1, "input_length": 5, "output_length": 5, "hash_ids": [0]}',
        '{"timestamp": 1, "input_length": 5.5, "output_length": 5, "hash_ids": [0]}',
        '{"timestamp": 1, "input_length": 5, "output_length": 5}',
        '{"timestamp": NaN, "input_length": 5, "output_length": 5, "hash_ids": [0]}',
    ],
)
def test_what_is_no_mooncake_line(line: str) -> None:
    with pytest.raises(ConfigError, match="line 1"):
        parse_mooncake([line])


def test_custom() -> None:
    found = custom_workload(lines("custom.jsonl"), 9, output_len=16)
    first, second, third = found.requests
    assert first.messages == [{"role": "user", "content": "hi"}]
    assert (first.extra, first.slos, first.num_output_tokens) == ({"cache_salt": "x"}, {"ttft": 500.0}, 16)
    assert (second.prompt, second.num_prompt_tokens) == ([5, 6, 7], 3)
    assert (third.prompt, third.extra, third.num_output_tokens) == ("Say hello", {"priority": 3}, 5)


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "a", "speed": 1}',
        '{"prompt": "a", "messages": []}',
        "{}",
        '{"prompt": ""}',
        '{"prompt": [-1]}',
        '{"messages": []}',
        '{"prompt": "a", "output_tokens": 0}',
        '{"prompt": "a", "timestamp": -1}',
        '{"prompt": "a", "slo": {"ttft": "x"}}',
        "nonsense",
        "3",
    ],
)
def test_what_is_no_custom_line(line: str) -> None:
    with pytest.raises(ConfigError, match="dataset line 1"):
        custom_workload([line], 1, output_len=None)


def test_custom_instants_are_for_all_or_none() -> None:
    with pytest.raises(ConfigError, match="timestamp"):
        custom_workload(['{"prompt": "a", "timestamp": 1}', '{"prompt": "b"}'], 2, output_len=None)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dataset_path"):
        read_text(tmp_path / "nope")
    (tmp_path / "latin").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="dataset_path"):
        read_text(tmp_path / "latin")
