"""Results read back: what was written comes back; what is none is named with its file."""

from __future__ import annotations

import gc
import json

import pytest
from tests.loadgen.fake_server import answering, running

from ridgeline.errors import ConfigError
from ridgeline.loadgen.benchmark import execute_load, plan_load
from ridgeline.loadgen.result import ReportSettings, load_result, without_detail
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.loadgen.stored_result import need_records, stored_runs
from ridgeline.metrics.durations import itl_s, tpot_s, ttft_s
from ridgeline.workload.synthetic import RandomLengths


def test_what_was_measured_comes_back_and_detail_is_asked_for() -> None:
    dataset = DatasetSettings(num_prompts=3, random=RandomLengths(input_len=4, output_len=3))
    with running(answering(3, gap_s=0.01)) as server:
        plan = plan_load(TargetSettings(url=server.url, model="m"), dataset, TrafficSettings())
        run = execute_load(plan)
    document = load_result(plan, run, ReportSettings(save_detailed=True))
    [stored] = stored_runs("a.json", json.dumps(document, indent=2))
    for before, after in zip(run.records, need_records(stored), strict=True):
        assert (ttft_s(after), tpot_s(after)) == (ttft_s(before), tpot_s(before))
        assert itl_s(after) == itl_s(before)
        assert (after.outcome, after.request_id) == (before.outcome, before.request_id)
    lines = "\n".join(json.dumps(each) for each in (document, without_detail(document)))
    first, second = stored_runs("all.json", lines)
    assert (first.name, second.name) == ("all.json #1", "all.json #2")
    with pytest.raises(ConfigError, match=r"all.json #2.*--save-detailed"):
        need_records(second)


def test_a_run_does_no_full_collection_and_leaves_the_thresholds_as_they_were() -> None:
    before, seen = gc.get_threshold(), []
    dataset = DatasetSettings(num_prompts=2, random=RandomLengths(input_len=4, output_len=3))
    with running(answering(3, gap_s=0.01)) as server:
        plan = plan_load(TargetSettings(url=server.url, model="m"), dataset, TrafficSettings())
        execute_load(plan, lambda _: seen.append(gc.get_threshold()))
    assert [each[:2] for each in seen] == [before[:2]] * 2
    assert min(each[2] for each in seen) > 10**9
    assert gc.get_threshold() == before


GOOD = {
    **{"ridgeline": {}, "rates": {}, "completed": 0, "failed": 0, "failures": {}},
    **{"model_id": "m", "request_rate": 1},
}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("{}\n{", "not JSON"),
        ('{"a": NaN}', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no JSON object"),
        ("{}", "has no 'ridgeline'"),
        (json.dumps({**GOOD, "requests": 3}), "can't be read"),
        (json.dumps({**GOOD, "requests": [{}]}), "can't be read"),
        (json.dumps({**GOOD, "requests": [{"id": 1, "scheduled_s": 2, "chunks": [[1, 1]]}]}), "backwards"),
    ],
)
def test_a_bad_file_is_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        stored_runs("bad.json", text)
    assert "bad.json" in str(caught.value)
