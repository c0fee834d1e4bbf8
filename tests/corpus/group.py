"""Two failures at once, in an exception group (Python 3.11)."""

from ranks import train


def read() -> None:
    errors = []
    for shard in ("shard-0", "shard-1"):
        try:
            open(shard)  # here
        except OSError as error:
            errors.append(error)
    raise ExceptionGroup("shards cannot be read", errors)  # noqa: F821


train(read)
