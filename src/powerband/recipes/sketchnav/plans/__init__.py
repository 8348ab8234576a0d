"""Floor plans, episodes and sketches of sketchnav."""
