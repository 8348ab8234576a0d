"""Parsers: finds the options of a script in each kind of parser, tracks their reads and changes their values."""
