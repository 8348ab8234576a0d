"""Audit: finds options of a training script that have no effect, by their reads and by short runs with other values."""
