"""Monitoring of running workers: heartbeats, sections, time-outs, stacks."""
