"""Usage: tokens of one call, as OpenAI counts them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.outputs import RequestOutput


@dataclass(slots=True)
class Usage:
    """Counts as deltas or whole outputs come."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    _seen: set[str] = field(default_factory=set)

    def add(self, output: RequestOutput) -> None:
        """Take a delta, or a whole output once."""
        self.add_prompt(output.request_id, len(output.prompt_token_ids))
        self.completion_tokens += sum(len(c.token_ids) for c in output.outputs)
        if output.metrics is not None:
            self.cached_tokens += output.metrics.num_cached_tokens

    def add_prompt(self, request_id: str, num_tokens: int) -> None:
        """Take a request's prompt, once; for counts that are shown before its first delta."""
        if request_id not in self._seen:
            self._seen.add(request_id)
            self.prompt_tokens += num_tokens

    def document(self) -> dict[str, object]:
        """The `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
