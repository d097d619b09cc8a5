"""Tool calls in chats: how models are told of tools, and how their calls are read."""
