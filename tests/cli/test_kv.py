"""`ridgeline kv`: runs, records, replays and traces, and their refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.metrics.event_trace import parse_event_trace


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]):
    """Run `ridgeline kv`; stdout."""

    def call(*arguments: object) -> str:
        assert run(["kv", *map(str, arguments)]) == 0
        return capsys.readouterr().out

    return call


def test_a_run_is_shown_recorded_and_replayed(shown, tiny_model: Path, tmp_path: Path) -> None:
    record, page = tmp_path / "events.jsonl", tmp_path / "blocks.html"
    text = shown(
        *("show", "Hello there, you", "Hello there, all", "--model", tiny_model, "--max-tokens", 20),
        *("--ignore-eos", "--n", 2, "--block-size", 16, "--kv-cache-bytes", 2**21),
        *("--save-trace", record, "--html", page),
    )
    assert "Prefix cache look-ups" in text
    assert "A = request" in text
    assert "plotly" in page.read_text(encoding="utf-8")
    header, events = parse_event_trace(record.read_text(encoding="utf-8").split("\n"))
    assert header.block_size == 16
    document = json.loads(shown("show", "--trace", record, "--json", "-"))
    assert len(document["events"]) == len(events)
    last = document["steps"][-1]
    assert last["used_blocks"] == 0
    assert last["used_blocks"] + last["idle_blocks"] + last["free_blocks"] == header.num_blocks
    for step in document["steps"]:
        tokens = sum(read["tokens"] for read in step["reads"])
        assert step["read_bytes"] == tokens * document["bytes_per_token"] > 0 or step["step_id"] is None
    assert document["bytes_per_token_formula"].startswith("2 (K, V) × ")


def test_prompts_in_turn_find_what_the_first_one_left(shown, tiny_model: Path) -> None:
    arguments = ["A long enough beginning, twice", "A long enough beginning, twice", "--max-tokens", 2]
    document = json.loads(
        shown(
            "show", *arguments, "--model", tiny_model, "--raw", "--in-turn", "--block-size", 16, "--json", "-"
        )
    )
    lookups = document["prefix_lookups"]
    assert [each["reason"] for each in lookups] == ["cold", "partial_block"]
    assert lookups[1]["hit_tokens"] > 0


def test_a_recorded_run_is_compared_with_other_allocators(shown, tiny_model: Path, tmp_path: Path) -> None:
    record = tmp_path / "events.jsonl"
    run_it = ["show", "Hi", "Ho", "--model", tiny_model, "--max-tokens", 30, "--ignore-eos"]
    shown(*run_it, "--save-trace", record)
    document = json.loads(shown("fragmentation", "--events", record, "--json", "-"))
    assert document["trace"]["requests"] == 2
    assert document["trace"]["mean_output_tokens"] == 30
    live = document["live"]
    assert live["block_size"] == 32
    assert 0 < live["useful_of_held"] < 1
    assert 0 < live["slack_tokens_per_sequence"] < 32
    assert "the recorded run itself" in shown("fragmentation", "--events", record)


def test_a_trace_is_replayed_printed_and_plotted(shown, tmp_path: Path) -> None:
    trace, page, target = tmp_path / "trace.jsonl", tmp_path / "page.html", tmp_path / "out.json"
    lines = [{"arrived_at_s": i / 50, "prompt_tokens": 20 + i, "output_tokens": 40} for i in range(60)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    text = shown(
        *("fragmentation", "--trace", trace, "--capacity-tokens", 1024, "--max-model-len", 256),
        *("--html", page, "--json", target),
    )
    assert "paged 16" in text
    document = json.loads(target.read_text())
    by_name = {each["allocator"]: each for each in document["allocators"]}
    assert len(by_name) == 13
    assert by_name["paged 16"]["useful"] > 2 * by_name["reserve max"]["useful"]
    assert by_name["paged 16"]["expected_slack_tokens_per_sequence"] == 7.5
    assert document["live"] is None
    assert page.stat().st_size > 10**6


def test_the_built_in_trace_is_repeatable(shown) -> None:
    arguments = ["fragmentation", "--num-prompts", 40, "--json", "-"]
    assert shown(*arguments) == shown(*arguments) != shown(*arguments, "--seed", 1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["show"], "give at least one prompt"),
        (["show", "Hi", "--trace", "x.jsonl"], "not both"),
        (["show", "--trace", "/nonexistent/x.jsonl"], "can't be read"),
        (["fragmentation", "--trace", "/nonexistent/x.jsonl"], "can't be read"),
        (["fragmentation", "--num-prompts", "0"], "num_prompts=0"),
        (["fragmentation", "--request-rate", "0"], "request_rate=0"),
        (["fragmentation", "--capacity-tokens", "100"], "capacity_tokens=100"),
        (["fragmentation", "--max-model-len", "100"], "max_model_len=100"),
        (["show", "Hi", "--html", "/nonexistent/x.html"], "html='/nonexistent/x.html': can't be written"),
        (["show", "Hi", "--save-trace", "/tmp"], "save_trace='/tmp': can't be written"),
        (["fragmentation", "--num-prompts", "3", "--html", "/nonexistent/x.html"], "can't be written"),
    ],
)
def test_wrong_options_are_refused(capsys, arguments: list[str], named: str) -> None:
    assert run(["kv", *arguments]) == 2
    assert named in capsys.readouterr().err
