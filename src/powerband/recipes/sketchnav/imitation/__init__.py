"""Imitation in sketchnav: records demonstrations, reads them as a dataset, and acts with the learned policy."""
