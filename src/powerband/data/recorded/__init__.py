"""Recorded data of any kind: shards, recordings of episodes, and the batch loader."""
