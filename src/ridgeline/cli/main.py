"""`ridgeline`: run one command, and say what went wrong in one line."""

from __future__ import annotations

import signal
import sys

EXIT_OK, EXIT_FAILURE, EXIT_USER_ERROR, EXIT_INTERRUPTED, EXIT_TERMINATED = 0, 1, 2, 130, 143


def main() -> None:
    """Run one command and exit: 0 ok, 2 the user's mistake, 1 anything else, 130 and 143 interrupted."""
    try:
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(_failed("interrupted", EXIT_INTERRUPTED))


def run(arguments: list[str]) -> int:
    """Run one command; returns its exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    _prepare_streams()
    # Loaded here, so that an interrupt during the imports ends like any other.
    from cyclopts import CycloptsError

    from ridgeline.cli.app import new_app
    from ridgeline.errors import DownloadError, EngineError, RidgelineError

    try:
        new_app()(
            arguments or ["--help"], exit_on_error=False, print_error=False, result_action="return_value"
        )
        sys.stdout.flush()
    except CycloptsError as error:
        return _failed(_usage_problem(error, arguments), EXIT_USER_ERROR)
    except (DownloadError, EngineError) as error:
        return _failed(str(error), EXIT_FAILURE)
    except RidgelineError as error:
        return _failed(str(error), EXIT_USER_ERROR)
    except BrokenPipeError:
        return _abandoned()
    except OSError as error:
        _abandoned()
        place = f"{error.filename}: " if error.filename is not None else "can't write the output: "
        return _failed(f"{place}{error.strerror}", EXIT_FAILURE)
    return EXIT_OK


def _prepare_streams() -> None:
    """Log to stderr, replace what the encoding can't show, write into nothing where a stream is closed."""
    import logging
    import os

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("ridgeline: %(message)s"))
    logging.getLogger("ridgeline").handlers = [handler]
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - lives as long as we do
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - lives as long as we do
    elif hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="surrogateescape")  # the tokenizer refuses what is not UTF-8


def _usage_problem(error: Exception, arguments: list[str]) -> str:
    """What the parser says, in words that fit an engine whose tokens are something else."""
    unused = getattr(error, "unused_tokens", None)
    command = [word for word in arguments[:2] if word.isalpha()]
    problem = f"unexpected argument {unused[0]!r}." if unused else str(error)
    if unused and command[:1] == ["generate"]:
        problem += " Quote a prompt of several words."
    return f"{problem} Try: {' '.join(['ridgeline', *command[:1], '--help'])}"


def _abandoned() -> int:
    """Nobody reads stdout any more: forget what is still to be flushed."""
    import os

    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - lives as long as we do
    return EXIT_FAILURE


def _failed(message: str, status: int) -> int:
    print("ridgeline: error:", " ".join(message.split()), file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
