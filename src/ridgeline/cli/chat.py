"""`ridgeline chat`: a conversation in the terminal."""

from __future__ import annotations

import sys

from ridgeline.cli.generate import print_stream
from ridgeline.cli.options import EngineOptions, SamplingOptions
from ridgeline.cli.report import finish_line
from ridgeline.errors import RequestError
from ridgeline.llm import LLM
from ridgeline.sampling_params import SamplingParams

_HELP = "/reset starts anew, /exit or Ctrl-D leaves, Ctrl-C stops an answer, /help"


def chat(
    *,
    system: str | None = None,
    sampling: SamplingOptions = SamplingOptions(),  # noqa: B008 - frozen
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - frozen
) -> None:
    """Talk with the model, turn by turn; answers go to stdout, the rest to stderr.

    Example: ridgeline chat --system "Answer in one sentence."

    Parameters
    ----------
    system: str
        A system message to begin with.
    """
    params = sampling.params()
    opening = [{"role": "system", "content": system}] if system is not None else []
    with engine.load() as llm:
        print(f"{llm.parts.model_name}: {_HELP}", file=sys.stderr)
        messages = list(opening)
        while (line := _read_line()) is not None:
            if line == "/exit":
                break
            if line == "/reset":
                messages = list(opening)
            elif line == "/help":
                print(_HELP, file=sys.stderr)
            elif line.startswith("/"):
                print(f"there is no {line.split()[0]}: {_HELP}", file=sys.stderr)
            elif line:
                messages = _turn(llm, messages, line, params)


def _turn(
    llm: LLM, messages: list[dict[str, str]], line: str, params: SamplingParams
) -> list[dict[str, str]]:
    """One question and its answer; the conversation after it. A refused turn leaves it as it was."""
    asked = [*messages, {"role": "user", "content": line}]
    try:
        output = print_stream(llm.stream_chat(asked, params))
    except RequestError as error:
        print(f"ridgeline: error: {error} (/reset starts anew)", file=sys.stderr)
        return messages
    except KeyboardInterrupt:
        print(flush=True)
        return messages
    print(finish_line(output), file=sys.stderr)
    return [*asked, {"role": "assistant", "content": output.outputs[0].text}]


def _read_line() -> str | None:
    """The next line without its ends' blanks; None at the end of input."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 - its import gives input() a history and line editing
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        print(file=sys.stderr)
        return ""
