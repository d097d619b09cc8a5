"""The loop that runs steps, and the text side of it."""
