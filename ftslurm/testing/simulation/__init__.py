"""Whole clusters on virtual time: the real state machines of agents and coordinator among simulated failures."""
