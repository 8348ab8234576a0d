"""Renders the camera images of sketchnav with MuJoCo."""
