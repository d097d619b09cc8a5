"""The shared case of prompts that aren't as long as they claim: our load generator against our server."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.server.conftest import Served
from tests.server.test_completions import post

from ridgeline.loadgen.benchmark import execute_load, plan_load
from ridgeline.loadgen.result import ReportSettings, load_result
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.workload.synthetic import RandomLengths

pytestmark = pytest.mark.golden
NUM_PROMPTS = 8


def load(server: Served, *, input_len: int = 512, **target: object) -> dict:
    model = server.state.served_model_names[0]
    dataset = DatasetSettings(
        num_prompts=NUM_PROMPTS, random=RandomLengths(input_len=input_len, output_len=1)
    )
    settings = TargetSettings(url=server.url, model=model, **target)  # type: ignore[arg-type]
    plan = plan_load(settings, dataset, TrafficSettings())
    document = load_result(plan, execute_load(plan), ReportSettings(save_detailed=True))
    assert document["completed"] == NUM_PROMPTS, document["failures"]
    return document


def test_c24_prompts_of_completions_are_as_long_as_asked(real_server: Served) -> None:
    document = load(real_server)
    assert [each["prompt_tokens"] for each in document["requests"]] == [512] * NUM_PROMPTS
    assert document["total_input_tokens"] == document["requested_input_tokens"] == 512 * NUM_PROMPTS
    assert document["prompt_mismatch"] is None


def test_c24_those_of_chats_by_a_constant_of_the_template(real_server: Served) -> None:
    one = post(real_server, "/tokenize", messages=[{"role": "user", "content": "the"}]).json()["count"]
    constant = one - len(real_server.llm.tokenizer.encode("the"))
    document = load(real_server, backend="openai-chat")
    assert [each["prompt_tokens"] for each in document["requests"]] == [512 + constant] * NUM_PROMPTS
    assert document["total_input_tokens"] - document["requested_input_tokens"] == constant * NUM_PROMPTS
    assert f"+{constant} tokens a prompt" in document["prompt_mismatch"]


def test_c24_another_vocabulary_is_told_once_with_both_counts(real_server: Served, tiny_model: Path) -> None:
    document = load(real_server, input_len=64, backend="openai-chat", tokenizer=str(tiny_model))
    counted = [each["prompt_tokens"] for each in document["requests"]]
    assert document["total_input_tokens"] == sum(counted)
    assert document["requested_input_tokens"] == 64 * NUM_PROMPTS
    assert sum(counted) != 64 * NUM_PROMPTS
    assert "by the server's count" in document["prompt_mismatch"]
