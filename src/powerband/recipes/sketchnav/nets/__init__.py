"""Networks of sketchnav, which encode camera images, sketch and pose."""
