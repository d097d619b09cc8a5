"""`ridgeline`: the commands, and what an error looks like in a terminal."""

from __future__ import annotations

import logging
import signal
import sys
from types import FrameType

from cyclopts import App, CycloptsError
from rich.console import Console

from ridgeline import __version__
from ridgeline.cli import bench, chat, generate, models, plan, pull
from ridgeline.errors import DownloadError, EngineError, RidgelineError

EXIT_OK, EXIT_FAILURE, EXIT_USER_ERROR, EXIT_INTERRUPTED = 0, 1, 2, 130


def new_app() -> App:
    """The command tree."""
    app = App(
        name="ridgeline",
        help="Run language models on CPUs, and see why they take the time they take.",
        version=__version__,
        help_format="plaintext",
        console=Console(),
        error_console=Console(stderr=True),
    )
    app.command(pull.pull)
    app.command(models.new_app())
    app.command(generate.generate)
    app.command(chat.chat)
    app.command(plan.plan)
    app.command(bench.new_app())
    return app


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit: 0 ok, 2 the user's mistake, 1 anything else, 130 interrupted."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run one command; returns its exit status."""
    signal.signal(signal.SIGTERM, _interrupt)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("ridgeline: %(message)s"))
    logging.getLogger("ridgeline").handlers = [handler]
    try:
        new_app()(
            arguments or ["--help"], exit_on_error=False, print_error=False, result_action="return_value"
        )
        sys.stdout.flush()
    except CycloptsError as error:
        return _failed(f"{error} Try: ridgeline --help", EXIT_USER_ERROR)
    except (DownloadError, EngineError) as error:
        return _failed(str(error), EXIT_FAILURE)
    except RidgelineError as error:
        return _failed(str(error), EXIT_USER_ERROR)
    except KeyboardInterrupt:
        return _failed("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone; so has the place to say so
        return EXIT_FAILURE
    return EXIT_OK


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM ends a command as Ctrl-C does: what it holds is given back."""
    raise KeyboardInterrupt


def _failed(message: str, status: int) -> int:
    print("ridgeline: error:", " ".join(message.split()), file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
