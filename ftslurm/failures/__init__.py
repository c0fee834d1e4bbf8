"""What is written down about a failure."""
