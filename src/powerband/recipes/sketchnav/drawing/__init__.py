"""A local page in which a person draws a sketch over a plan, and the agent navigates by it."""
