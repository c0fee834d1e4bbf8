"""What ``scripts/bench`` measures: one module per benchmark, over tools, measure and table."""
