"""Scripted skills: what the hand does to make one condition of a LIBERO task true."""
