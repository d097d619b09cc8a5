"""Pure arithmetic on shapes and sizes: no clock, no I/O, no NumPy; what it says can be computed by hand."""
