"""Everything that measures."""
