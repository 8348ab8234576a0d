"""Generates the floor plans, episodes and sketches of sketchnav, and draws images of them."""
