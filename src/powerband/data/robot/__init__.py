"""Demonstrations of robot arms: readers and writers of their formats, image caches, and batches of action chunks."""
