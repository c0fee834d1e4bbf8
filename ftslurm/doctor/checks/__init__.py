"""One probe per file: a thin part that accesses the filesystem, and a pure one that judges the facts."""
