"""The command line: parse, build a config, call."""
