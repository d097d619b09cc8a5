"""Numeric kernels: the native module behind one facade, and its NumPy twins."""
