"""MuJoCo renderer of sketchnav."""
