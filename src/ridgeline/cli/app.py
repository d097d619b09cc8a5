"""The command tree."""

from __future__ import annotations

from cyclopts import App
from rich.console import Console

from ridgeline import __version__
from ridgeline.cli import bench, calibrate, chat, explain, generate, kv, metrics, models, plan, pull, serve


def new_app() -> App:
    """All commands of `ridgeline`."""
    app = App(
        name="ridgeline",
        help="Run language models on CPUs, and see why they take the time they take.",
        version=__version__,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
        console=Console(),
        error_console=Console(stderr=True),
    )
    app.command(pull.pull)
    app.command(models.new_app())
    app.command(generate.generate)
    app.command(chat.chat)
    app.command(serve.serve)
    app.command(explain.explain)
    app.command(plan.plan)
    app.command(calibrate.calibrate)
    app.command(kv.new_app())
    app.command(metrics.new_app())
    app.command(bench.new_app())
    return app
