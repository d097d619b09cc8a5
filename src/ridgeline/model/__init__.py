"""A model's weights and its forward pass, behind the Executor Protocol."""
