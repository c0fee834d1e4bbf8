"""Holds the one file by whose path workers are started; nothing here is imported."""
