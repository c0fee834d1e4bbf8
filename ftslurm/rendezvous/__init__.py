"""Who is in, which round, which rank: the fenced state and the pure functions over it."""
