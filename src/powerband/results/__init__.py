"""Published learning results, and the check of a new run against them."""
