"""Hides secrets among this process's arguments from `ps`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

_PROCESS = Path("/proc/self")
_ARG_START_FIELD = 48
"""Position of `arg_start` in /proc/PID/stat, counted from 1. Source: proc_pid_stat(5)."""


def hide_arguments(secrets: Iterable[str]) -> bool:
    """Overwrite every occurrence of `secrets` in the arguments that other users can list.

    Returns whether none is visible any more; false where the system does not tell where they lie.
    """
    try:
        arguments = (_PROCESS / "cmdline").read_bytes()
        # The second field, the program's name, may hold spaces and parentheses.
        stat_fields = (_PROCESS / "stat").read_text().rpartition(")")[2].split()
        start = int(stat_fields[_ARG_START_FIELD - 3])
    except (OSError, ValueError, IndexError):
        return False
    hidden = arguments
    for secret in secrets:
        hidden = hidden.replace(secret.encode(), b"*" * len(secret.encode()))
    if start and hidden != arguments:
        ctypes.memmove(start, hidden, len(hidden))
    return (_PROCESS / "cmdline").read_bytes() == hidden
