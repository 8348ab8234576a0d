"""Evaluation of sketchnav: its options, the episodes that it plays, and its results."""
