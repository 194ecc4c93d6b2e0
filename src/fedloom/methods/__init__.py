"""One file per method, named after it."""
