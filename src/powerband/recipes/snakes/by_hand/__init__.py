"""A game of snakes by hand: a person plays against a policy, in the terminal or in a browser."""
