"""An exception that 49 layers raise again, each from the one below."""

from ranks import train


class PipelineError(Exception):
    """What each layer raises."""


def stage(number: int) -> None:
    try:
        if number == 0:
            {}["row 4711"]
        stage(number - 1)
    except Exception as error:
        raise PipelineError(f"stage {number}") from error  # here


train(lambda: stage(48))
