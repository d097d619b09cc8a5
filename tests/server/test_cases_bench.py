"""C24 on the real model: prompts are as long as the load generator claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.loadgen.test_codecs import words_tokenizer
from tests.server.conftest import Served

from ridgeline.loadgen.benchmark import execute_load, plan_load
from ridgeline.loadgen.result import ReportSettings, load_result
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.workload.synthetic import RandomLengths

pytestmark = pytest.mark.golden

NUM_PROMPTS, LENGTH = 4, 512


def measure(server: Served, *, prompts_as: str = "auto", **target: object) -> dict[str, Any]:
    dataset = DatasetSettings(
        num_prompts=NUM_PROMPTS,
        random=RandomLengths(input_len=LENGTH, output_len=1),
        prompts_as=prompts_as,
    )
    plan = plan_load(TargetSettings(url=server.url, **target), dataset, TrafficSettings())  # type: ignore[arg-type]
    return load_result(plan, execute_load(plan), ReportSettings(save_detailed=True))


@pytest.mark.parametrize("prompts_as", ["ids", "text"])
def test_c24_a_completions_prompt_is_as_long_as_asked(real_server: Served, prompts_as: str) -> None:
    document = measure(real_server, prompts_as=prompts_as)
    assert document["completed"] == NUM_PROMPTS
    assert [each["prompt_tokens"] for each in document["requests"]] == [LENGTH] * NUM_PROMPTS
    assert document["total_input_tokens"] == document["requested_input_tokens"] == NUM_PROMPTS * LENGTH
    assert document["prompt_mismatch"] is None


def test_c24_a_chat_is_longer_by_its_template_and_says_so(real_server: Served) -> None:
    document = measure(real_server, backend="openai-chat")
    template = {each["prompt_tokens"] - LENGTH for each in document["requests"]}
    assert len(template) == 1
    assert document["total_input_tokens"] == NUM_PROMPTS * (LENGTH + template.pop())
    assert "tokens a prompt over what was asked (a template's)" in document["prompt_mismatch"]


def test_c24_another_vocabulary_gives_way_to_the_servers(real_server: Served, tmp_path: Path) -> None:
    document = measure(real_server, prompts_as="text", tokenizer=words_tokenizer(tmp_path))
    assert document["total_input_tokens"] == NUM_PROMPTS * LENGTH
    assert sum("is not the server's" in note for note in document["notes"]) == 1
