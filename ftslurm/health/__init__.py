"""Health: is this node fit to take part, what is wrong with it, and what to do about it."""
