"""`ridgeline generate`: one completion, streamed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.json_output import JsonTarget, check_target, write_json
from ridgeline.cli.options import EngineOptions, Flag, SamplingOptions
from ridgeline.cli.report import finish_line, request_document
from ridgeline.outputs import CompletionOutput, RequestOutput


def generate(
    prompt: Annotated[str, Parameter(allow_leading_hyphen=True)],
    *,
    raw: Annotated[bool, Flag] = False,
    json: JsonTarget = None,
    sampling: SamplingOptions = SamplingOptions(),  # noqa: B008 - frozen
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - frozen
) -> None:
    """Answer one prompt, streamed to stdout; timings go to stderr.

    Example: ridgeline generate "Why is the sky blue?" --max-tokens 64

    Parameters
    ----------
    prompt: str
        The text; - reads it from stdin.
    raw: bool
        Continue the text as it is, without the model's chat template.
    json: str
        Write the result as JSON to this file; - prints it in place of the text.
    """
    params = sampling.params()
    check_target(json)
    text = _prompt_text(prompt)
    with engine.load() as llm:
        deltas = (
            llm.stream(text, params) if raw else llm.stream_chat([{"role": "user", "content": text}], params)
        )
        output = print_stream(deltas, quiet=json == "-")
        if json is not None:
            write_json(json, request_document(output, llm.parts))
        print(finish_line(output), file=sys.stderr)


def print_stream(deltas: Iterator[RequestOutput], *, quiet: bool = False) -> RequestOutput:
    """Print deltas as they come; returns the whole output."""
    whole: RequestOutput | None = None
    for delta in deltas:
        if whole is None:
            whole = RequestOutput(
                delta.request_id,
                delta.prompt,
                delta.prompt_token_ids,
                [CompletionOutput(0, "", [])],
                finished=False,
            )
        whole.extend(delta)
        if not quiet:
            print(delta.outputs[0].text, end="", flush=True)
    assert whole is not None
    if not quiet:
        print(flush=True)
    return whole


def _prompt_text(prompt: str) -> str:
    return sys.stdin.read() if prompt == "-" else prompt
