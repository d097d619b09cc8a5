"""Slack of a real run, and the run as a trace that other allocators can be given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ridgeline.core import events as ev
from ridgeline.metrics.block_map import Frame
from ridgeline.workload.request_trace import TraceRequest


@dataclass(frozen=True, slots=True)
class LiveFragmentation:
    """Sums over the steps of a run: tokens in held blocks, empty slots in them, requests that held any.

    A block that several requests hold counts once, so sharing shows as more than its arithmetic expects.
    """

    num_steps: int
    num_token_slots: int
    num_slack_slots: int
    num_sequences: int

    @property
    def useful_of_held(self) -> float | None:
        """Tokens per held slot; None where no step held any."""
        held = self.num_token_slots + self.num_slack_slots
        return self.num_token_slots / held if held else None

    @property
    def slack_per_sequence(self) -> float | None:
        """Empty slots per request and step; None where no step held any."""
        return self.num_slack_slots / self.num_sequences if self.num_sequences else None


def live_fragmentation(frames: Iterable[Frame], block_size: int) -> LiveFragmentation:
    """Add up the frames of `block_frames`."""
    num_steps = num_token_slots = num_slack_slots = num_sequences = 0
    for frame in frames:
        if frame.step_id is None:
            continue
        num_steps += 1
        num_token_slots += sum(block.num_tokens for block in frame.blocks if block.owners)
        num_slack_slots += frame.num_slack_slots(block_size)
        num_sequences += len({owner for block in frame.blocks for owner in block.owners})
    return LiveFragmentation(num_steps, num_token_slots, num_slack_slots, num_sequences)


def request_trace_of(events: Sequence[ev.Event]) -> list[TraceRequest]:
    """The requests that ended with at least one token, as they arrived; seconds count from the first."""
    arrived = {event.request_id: event for event in events if isinstance(event, ev.RequestArrived)}
    ended = {event.request_id: event for event in events if isinstance(event, ev.RequestFinished)}
    whole = [
        (arrival, ended[request_id].num_output_tokens)
        for request_id, arrival in arrived.items()
        if request_id in ended and ended[request_id].num_output_tokens
    ]
    start_s = min((arrival.at_s for arrival, _ in whole), default=0.0)
    return [
        TraceRequest(arrival.at_s - start_s, arrival.num_prompt_tokens, num_output_tokens)
        for arrival, num_output_tokens in whole
    ]
