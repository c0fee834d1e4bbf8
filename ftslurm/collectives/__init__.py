"""Judgement of the ranks' records of their collectives: which operation, which number, and which rank did not join."""
