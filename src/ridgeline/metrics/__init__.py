"""What the events and instants of the engine amount to, each quantity defined once."""
