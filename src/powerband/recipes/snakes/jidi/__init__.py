"""Submission of a trained team to the Jidi platform. `submission`, `agent` and `board` are copied to its folder.

They run there with Python 3.6, numpy and nothing else, so they import no other file of powerband.
"""
