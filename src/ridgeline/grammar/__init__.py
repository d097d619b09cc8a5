"""Output that must follow a grammar: specifications become token masks."""
