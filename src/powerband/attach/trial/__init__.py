"""Trial: starts a script again with one change made from outside, and compares predicted and realised gains."""
