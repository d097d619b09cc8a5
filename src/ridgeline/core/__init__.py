"""The pure core: which tokens to compute next and in which blocks; no clock, no I/O, no NumPy."""
