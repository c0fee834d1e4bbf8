"""One probe per file: a thin part that touches the filesystem, and a pure one that judges what came out."""
