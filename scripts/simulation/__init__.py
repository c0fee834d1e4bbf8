"""Simulated clusters on virtual time: the real state machines of agents and coordinator with injected faults."""
