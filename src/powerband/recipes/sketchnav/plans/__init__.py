"""Generates the floor plans, sketches and episodes of sketchnav, and draws images of them."""
