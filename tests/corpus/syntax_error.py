"""A module of the user with a syntax error: every rank fails at start."""

import model_of_mine  # noqa: F401  # here
