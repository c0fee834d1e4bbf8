"""A module that is not installed: every rank fails at start."""

import no_such_module_at_all  # noqa: F401  # here
