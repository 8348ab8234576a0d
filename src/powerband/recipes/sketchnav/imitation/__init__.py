"""Imitation in sketchnav: recording of demonstrations, their dataset, and the policy that acts."""
