"""Membership, rounds and ranks: the fenced state and the pure functions over it."""
