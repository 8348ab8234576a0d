"""Processes: starts a command line with the instrumentation, watches its processes and reads what they have written."""
