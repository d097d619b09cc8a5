from __future__ import annotations

import pytest
from tests.loadgen.fake_server import Request, answering, running

from ridgeline.loadgen.benchmark import execute_load, plan_load
from ridgeline.loadgen.late_tokens import cause_words, causes_of, find_late_tokens
from ridgeline.loadgen.server_account import ServerAccount, ask_server
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.durations import Chunk
from ridgeline.workload.synthetic import RandomLengths


def record(name: str, *at_s: float, slos_s: dict[str, float] | None = None) -> ClientRecord:
    return ClientRecord(
        request_id=name,
        scheduled_at_s=0.0,
        sent_at_s=0.0,
        chunks=[Chunk(at, 2) for at in at_s],
        outcome=Outcome.OK,
        slos_s=slos_s or {},
    )


def test_the_longest_gaps_and_every_first_token_over_its_limit() -> None:
    records = [record("a", 0.5, 0.6, 1.6), record("b", 0.1, 0.4), record("c", 0.3, slos_s={"ttft": 0.2})]
    late = find_late_tokens(records, {"ttft": 0.45}, top=2)
    assert [(each.request_id, each.token, round(each.seconds, 3)) for each in late] == [
        ("a", 4, 1.0),
        ("b", 2, 0.3),
        ("a", 0, 0.5),
        ("c", 0, 0.3),
    ]
    assert find_late_tokens([record("d")], {"ttft": 0.1}) == []


def test_causes_are_those_of_the_token() -> None:
    document = {"late_tokens": [{"token": 1, "cause": "prefill"}, {"token": 2, "cause": "preempted"}, 3]}
    assert causes_of(document, 2) == [{"token": 2, "cause": "preempted"}]
    assert causes_of({"late_tokens": "x"}, 2) == causes_of(None, 2) == []


def run_against(server_url: str, *, all_requests: bool = False) -> ServerAccount | None:
    dataset = DatasetSettings(num_prompts=2, random=RandomLengths(input_len=4, output_len=3))
    plan = plan_load(TargetSettings(url=server_url, model="m"), dataset, TrafficSettings())
    return ask_server(plan, execute_load(plan), {"ttft": 0.0}, all_requests=all_requests)


def test_a_server_that_tells() -> None:
    def debug(request: Request) -> object:
        return {"late_tokens": [{"token": 0, "cause": f"queued: {request.path.rsplit('/', 1)[1][:6]}"}]}

    with running(answering(3)) as server:
        server.prefixes["/debug/requests/"] = debug
        late = run_against(server.url)
    assert late is not None
    firsts = [each for each in late.late_tokens if each["kind"] == "ttft"]
    assert len(firsts) == 2
    assert firsts[0]["causes"] == [{"token": 0, "cause": "queued: bench-"}]
    assert len(late.late_tokens) == 2 + 4


def test_a_server_that_does_not() -> None:
    with running(answering(3)) as server:
        assert run_against(server.url, all_requests=True) is None
        assert len([r for r in server.requests if r.path.startswith("/debug")]) <= 3


def test_the_servers_own_durations() -> None:
    known = {"ttft_s": 0.25, "queue_s": 0, "prefill_s": None, "decode_s": "x", "late_tokens": []}
    with running(answering(3)) as server:
        server.prefixes["/debug/requests/"] = lambda _: known
        account = run_against(server.url, all_requests=True)
    assert account is not None
    assert (
        list(account.times.values())
        == [{"ttft_s": 0.25, "queue_s": 0.0, "prefill_s": None, "decode_s": None}] * 2
    )


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ({"cause": "queue", "lack": "kv_blocks", "share": 0.438}, "queue (kv_blocks) 44 %"),
        ({"cause": "queue", "lack": None, "share": 1.0}, "queue 100 %"),
        ({"cause": "unknown"}, "unknown"),
        ({"cause": "\x1b[2J", "share": "x"}, "\ufffd[2J"),
        ({"cause": "prefill", "share": 7.0}, "prefill"),
        ({"cause": 3}, None),
        ("odd", None),
    ],
)
def test_a_cause_in_words(cause: object, words: str | None) -> None:
    assert cause_words(cause) == words
