"""`ridgeline models`: what is cached."""

from __future__ import annotations

from cyclopts import App
from rich.console import Console

from ridgeline.cli.json_output import JsonTarget, write_json
from ridgeline.config.env import home_dir
from ridgeline.formats.gguf import open_gguf
from ridgeline.hub.store import list_models, remove_model, resolve_model
from ridgeline.model.weights import load_weights


def new_app() -> App:
    """The `models` group."""
    app = App(name="models", help="List, show and remove cached models.")
    app.default(list_cached)
    app.command(list_cached, name="list")
    app.command(show)
    app.command(remove)
    return app


def list_cached(*, json: JsonTarget = None) -> None:
    """List the models in the cache.

    Example: ridgeline models

    Parameters
    ----------
    json: str
        Write the list as JSON to this file; - prints it.
    """
    models = list_models(home_dir())
    if json is not None:
        write_json(json, [{"name": m.name, "path": str(m.path), "size_bytes": m.size_bytes} for m in models])
    if json == "-":
        return
    for model in models:
        print(f"{model.name}  {model.size_bytes / 1e6:.0f} MB  {model.path}")
    if not models:
        Console(stderr=True).print("nothing is cached; ridgeline pull --list shows what can be fetched")


def show(name: str, /, *, json: JsonTarget = None) -> None:
    """Show a model's dimensions and formats, from its file.

    Example: ridgeline models show smollm2-135m-instruct

    Parameters
    ----------
    name: str
        Catalogue name, hf: name or path of a .gguf file.
    json: str
        Write them as JSON to this file; - prints it.
    """
    path = resolve_model(name, home_dir())
    with open_gguf(path) as file:
        weights = load_weights(file)
        model = weights.config
        document = {
            "name": model.name,
            "path": str(path),
            "arch": model.arch,
            "format": weights.main_format,
            "weights_bytes": weights.stored_bytes,
            "layers": model.num_layers,
            "hidden": model.hidden_size,
            "heads": model.num_heads,
            "kv_heads": model.num_kv_heads,
            "head_dim": model.head_dim,
            "ffn": model.ffn_size,
            "vocab": model.vocab_size,
            "tied": model.is_tied,
            "context": model.context_len,
        }
        del weights
    if json is not None:
        write_json(json, document)
    if json != "-":
        for key, value in document.items():
            print(f"{key:14}{value}")


def remove(name: str, /) -> None:
    """Delete a model from the cache.

    Example: ridgeline models remove smollm2-135m-instruct

    Parameters
    ----------
    name: str
        A name that `ridgeline models` lists.
    """
    for model in remove_model(name, home_dir()):
        print(f"removed {model.name}: {model.path}")
