"""Episodes of sketchnav: how a set is generated, cached, stored and read."""
