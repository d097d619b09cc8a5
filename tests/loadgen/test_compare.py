"""Comparisons of runs whose difference is known, and their resampling against plain expansion."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from ridgeline.errors import ConfigError
from ridgeline.loadgen.compare import (
    NO_DIFFERENCE,
    TOO_FEW,
    CompareSettings,
    compare_runs,
    comparison_lines,
)
from ridgeline.loadgen.resampling import GapSample, RequestSample, block_indices, num_resamples
from ridgeline.loadgen.stored_result import StoredRun
from ridgeline.metrics.client_record import Chunk, ClientRecord, Outcome

DOCUMENT = {
    **{"model_id": "m", "request_rate": 4.0, "dataset": "random", "completed": 0, "failed": 0},
    **{"valid": True, "interrupted": False, "goodput": None},
}


def run(
    seed: int, *, count: int = 200, shift_s: float = 0.0, num_failed: int = 0, name: str = "a", **changes: Any
) -> StoredRun:
    """Requests four a second; first token after 100…200 ms and `shift_s`, then seven gaps of 8…12 ms."""
    rng = Random(seed)
    records = []
    for index in range(count):
        at_s = start_s = index / 4
        at_s += 0.1 + 0.1 * rng.random() + shift_s
        chunks = [Chunk(at_s, 1)]
        for _ in range(7):
            at_s += 0.008 + 0.004 * rng.random()
            chunks.append(Chunk(at_s, 1))
        is_ok = index >= num_failed
        records.append(
            ClientRecord(
                request_id=str(index),
                scheduled_at_s=start_s,
                sent_at_s=start_s,
                chunks=chunks if is_ok else [],
                outcome=Outcome.OK if is_ok else Outcome.REJECTED,
                num_output_tokens=8,
            )
        )
    return StoredRun(name=name, document={**DOCUMENT, **changes}, records=records)


def rows(a: StoredRun, b: StoredRun, **settings: Any) -> dict[str, dict[str, Any]]:
    document = compare_runs(a, b, CompareSettings(**{"resamples": 400, **settings}))
    return {f"{row['metric']} {row['statistic']}": row for row in document["differences"]}


def test_a_known_difference_is_shown_and_held() -> None:
    found = rows(run(1), run(2, shift_s=0.03))
    for name in ("TTFT mean", "TTFT p50", "E2E mean"):
        assert found[name]["verdict"] == "b higher", name
        assert found[name]["low"] <= 30 <= found[name]["high"], name
    for name in ("TPOT mean", "ITL mean", "ITL p90", "failed share", "output tokens rate"):
        assert found[name]["verdict"] == NO_DIFFERENCE, name
    assert rows(run(2, shift_s=0.03), run(1))["TTFT mean"]["verdict"] == "b lower"
    assert "ICL mean" not in found


def test_the_same_load_seldom_shows_a_difference() -> None:
    shown = sum(
        rows(run(s), run(1000 + s), seed=s)["TTFT mean"]["verdict"] != NO_DIFFERENCE for s in range(40)
    )
    assert shown <= 8


def test_the_same_seed_gives_the_same_intervals() -> None:
    a, b = run(1), run(2)
    assert rows(a, b, seed=5) == rows(a, b, seed=5)
    assert rows(a, b, seed=5)["TTFT mean"]["low"] != rows(a, b, seed=6)["TTFT mean"]["low"]


def test_few_values_get_no_verdict() -> None:
    found = rows(run(1, count=60), run(2, count=60))
    assert found["TTFT p99"]["verdict"] == TOO_FEW
    assert found["TTFT p99"]["low"] is None
    assert found["TTFT p90"]["verdict"] == NO_DIFFERENCE
    tiny = rows(run(1, count=3), run(2, count=3))
    assert tiny["ITL mean"]["verdict"] == NO_DIFFERENCE
    assert {tiny[name]["verdict"] for name in ("TTFT mean", "requests rate")} == {TOO_FEW}


def test_no_success_is_undefined_and_failures_show() -> None:
    found = rows(run(1), run(2, num_failed=200))
    assert (found["TTFT mean"]["b"], found["TTFT mean"]["difference"]) == (None, None)
    assert found["failed share"]["verdict"] == "b higher"
    assert found["failed share"]["difference"] == 100
    assert found["requests rate"]["b"] is None
    empty = rows(run(1, count=0), run(2, count=0))
    assert empty["failed share"]["a"] is None


def test_attainment_by_own_slos_and_by_given_ones() -> None:
    slo = {"goodput": {"slo": {"ttft": 150.0}}}
    found = rows(run(1, **slo), run(2, shift_s=0.05, **slo))
    assert found["meets all SLOs share"]["verdict"] == "b lower"
    assert "meets all SLOs share" not in rows(run(1, **slo), run(2, goodput={"slo": {"ttft": 9.0}}))
    assert "meets all SLOs share" in rows(run(1), run(2), slos_s={"ttft": 0.15})


def test_unlike_runs_are_named() -> None:
    conditions = {"cpu": "x", "threads": 2}
    other = run(2, request_rate=8.0, conditions=conditions, valid=False, invalid_because="late")
    document = compare_runs(run(1), other, CompareSettings(resamples=100))
    text = "\n".join(document["warnings"])
    for part in ("request_rate differs: 4.0 and 8.0", "client's cpu", "b is not valid: late"):
        assert part in text
    lines = comparison_lines(document)
    assert any(line.startswith("NOT ALIKE: request_rate") for line in lines)
    assert compare_runs(run(1), run(2), CompareSettings(resamples=100))["warnings"] == []


def test_a_run_without_requests_names_the_option() -> None:
    with pytest.raises(ConfigError, match="save-detailed"):
        compare_runs(run(1), StoredRun(name="b", document=DOCUMENT, records=None), CompareSettings())


@pytest.mark.parametrize("changes", [{"confidence": 1.0}, {"confidence": 0.1}, {"resamples": 5}])
def test_settings_out_of_range(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        CompareSettings(**changes)


def test_chunks_of_several_tokens_bring_icl() -> None:
    def halved(source: StoredRun) -> StoredRun:
        assert source.records is not None
        records = [
            ClientRecord(
                request_id=r.request_id,
                scheduled_at_s=r.scheduled_at_s,
                sent_at_s=r.sent_at_s,
                chunks=[Chunk(chunk.at_s, 2) for chunk in r.chunks[1::2]],
                outcome=r.outcome,
                num_output_tokens=8,
            )
            for r in source.records
        ]
        return StoredRun(name="x", document=DOCUMENT, records=records)

    found = rows(halved(run(1)), halved(run(2)))
    assert found["ICL mean"]["a"] == pytest.approx(2 * found["ITL mean"]["a"])


def test_weighted_percentiles_are_those_of_the_expanded_values() -> None:
    rng = Random(3)
    gaps = [[rng.random() for _ in range(rng.randrange(5))] for _ in range(30)]
    found = GapSample(gaps).replicates([None, 50.0, 99.0], resamples=20, seed=9)
    generator = np.random.default_rng(9)
    for row in found:
        drawn = block_indices(30, 1, generator)[0]
        values = [gap for index in drawn for gap in gaps[index]]
        assert row == pytest.approx([np.mean(values), np.percentile(values, 50), np.percentile(values, 99)])


def test_blocks_are_neighbours_around_the_end() -> None:
    drawn = block_indices(27, 50, np.random.default_rng(0))
    assert drawn.shape == (50, 27)
    steps = np.diff(drawn.reshape(50, 9, 3), axis=2) % 27
    assert (steps == 1).all()
    assert set(drawn.ravel()) == set(range(27))


def test_neighbours_that_are_alike_widen_the_interval() -> None:
    """A queue that comes and goes: the mean scatters more than that of independent requests."""
    alike = [float(i // 50 % 2) for i in range(400)]
    shuffled = alike[:]
    Random(1).shuffle(shuffled)
    spread = [
        RequestSample(each).replicates([None], resamples=500, seed=1).std() for each in (alike, shuffled)
    ]
    assert spread[0] > 1.5 * spread[1]


def test_many_values_get_fewer_resamples() -> None:
    assert num_resamples(2000, 1000) == 2000
    assert num_resamples(2000, 10_000_000) == 200
    assert num_resamples(100, 10_000_000) == 100
