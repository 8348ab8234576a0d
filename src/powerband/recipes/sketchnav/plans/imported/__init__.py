"""Reads the user's own floor plans (pictures, SVG drawings, ROS maps) and episodes of Habitat in them."""
