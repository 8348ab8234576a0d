"""Times: ledgers and other figures of a script's processes, from what they have written."""
