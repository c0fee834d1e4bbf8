"""Logs of jobs that ftslurm did not run: from bytes to the facts of a `Snapshot`.

    reading   bytes, bounded      both ends of a file of any size, and the parts around interesting lines
    lines     text                lines, each with its label: rank, local rank, node
    tracebacks, ends, reasons     blocks: exceptions, crashes; ends of tasks and jobs; other reasons for an end
    attempts                      several starts of a job in one output
    judging                       what failed, by which rank; what was caught, and what is a reaction to a stop
    files, gathering              which files belong to the job; the snapshot

A log contains the end of what was written, not of what happened: nothing is concluded from a missing line.
"""
