"""Model files: bytes in, checked metadata and zero-copy views out; no NumPy."""
