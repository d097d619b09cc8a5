"""What a request waited for in the queue: places among the running, KV blocks, tokens of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ridgeline.core import events as ev
from ridgeline.core.events import Lack
from ridgeline.metrics.server_record import ServerRecord

LACK_WORDS = {
    Lack.SEQS: "a place among the running (max_num_seqs)",
    Lack.BLOCKS: "KV blocks",
    Lack.TOKENS: "tokens of a step (max_num_batched_tokens)",
    Lack.PREFILLS: "prompts under computation",
}


def wait_by_lack_s(events: Sequence[ev.Event], record: ServerRecord) -> dict[Lack, float]:
    """Seconds of the first wait by what the queue's first request lacked meanwhile, the longest first.

    What is missing of the whole wait passed while nobody was held: for the step under way.
    """
    start_s, end_s = record.queued_at_s, record.scheduled_at_s
    if start_s is None or end_s is None:
        return {}
    found: defaultdict[Lack, float] = defaultdict(float)
    held: ev.AdmissionHeld | None = None
    for event in events:
        if event.at_s > end_s:
            break
        if isinstance(event, ev.AdmissionHeld) or _ends(event, held):
            _add(found, held, (start_s, event.at_s))
            held = event if isinstance(event, ev.AdmissionHeld) else None
    _add(found, held, (start_s, end_s))
    return dict(sorted(found.items(), key=lambda item: item[1], reverse=True))


def _ends(event: ev.Event, held: ev.AdmissionHeld | None) -> bool:
    return (
        held is not None
        and isinstance(event, ev.RequestScheduled | ev.RequestFinished)
        and event.request_id == held.request_id
    )


def _add(found: defaultdict[Lack, float], held: ev.AdmissionHeld | None, span: tuple[float, float]) -> None:
    if held is not None and span[1] > max(span[0], held.at_s):
        found[held.lack] += span[1] - max(span[0], held.at_s)
