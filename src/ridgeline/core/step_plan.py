"""StepPlan: the step that is being put together."""

from __future__ import annotations

from ridgeline.core.request import Request


class StepPlan:
    """Who gets how many tokens, while it may still change.

    `shares` maps requests to tokens in the order of the rows; `prefilling` are those of them, or about to
    be, that have several tokens to compute.
    """

    def __init__(self, num_tokens: int) -> None:
        self.num_left = num_tokens
        self.shares: dict[Request, int] = {}
        self.prefilling: list[Request] = []

    def give(self, request: Request, num_tokens: int) -> None:
        """Give a request tokens, on top of what it has."""
        self.shares[request] = self.shares.get(request, 0) + num_tokens
        self.num_left -= num_tokens

    def drop(self, request: Request) -> None:
        """Take everything back from a request that lost its blocks."""
        self.num_left += self.shares.pop(request, 0)
        if request in self.prefilling:
            self.prefilling.remove(request)

    def num_missing(self, request: Request) -> int:
        """Known tokens of the request that this step leaves uncomputed."""
        return request.num_tokens - request.num_computed_tokens - self.shares.get(request, 0)
