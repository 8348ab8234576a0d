"""Audit of a tuning guide: its claims, and what a short measurement on this machine says about each."""
