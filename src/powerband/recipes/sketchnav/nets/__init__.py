"""Networks of sketchnav."""
