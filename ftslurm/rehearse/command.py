"""The command ``ftslurm rehearse``."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from ftslurm.agent.placement import shared_directory
from ftslurm.agent.preflight import unique_name
from ftslurm.kernel import become_subreaper
from ftslurm.rehearse.plan import make_plan, parser
from ftslurm.rehearse.rehearsal import NotInjected, Rehearsal
from ftslurm.rehearse.verdict import judge
from ftslurm.terminal import UsageError, print_error, show

EXIT_READY, EXIT_NOT_READY, EXIT_USAGE = 0, 1, 2
ENDING = (signal.SIGTERM, signal.SIGHUP)
LOCAL_VARIABLES = ("FTSLURM__LOCAL_NODE", "FTSLURM__LOCAL_ATTEMPT", "FTSLURM_RDZV_ID")

_parser = parser
"""For the completion."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code: 0 ready, 1 not ready, 2 wrong usage or no event, 128 + n signal n."""
    if "FTSLURM_RUN_ID" in os.environ and "FTSLURM_ROUND" in os.environ:
        return _refuse("this is a rank of a run; start it in a shell, or in a batch script")
    for name in LOCAL_VARIABLES:
        os.environ.pop(name, None)
    try:
        plan = make_plan(argv, os.environ, unique_name())
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    except UsageError as error:
        return _refuse(str(error))
    if job := os.environ.get("SLURM_JOB_ID"):
        nodes = plan.options.placement.local_nodes
        print_error(f"ftslurm rehearse: in job {job}, on this node alone, by {nodes} local agents (--local-nodes)")
    directory = os.path.join(shared_directory(plan.options.placement.shared_dir, None, os.getcwd()), plan.run_id)
    try:
        become_subreaper()
        # As Ctrl-C: the run that was started is stopped first.
        for number in ENDING:
            signal.signal(number, _end)
        injection, records = Rehearsal(plan, directory).carry_out()
    except NotInjected as problem:
        if problem.is_failure:
            show(f"not ready for {plan.event.title}: {problem}\n  see ftslurm report {directory}\n")
            return EXIT_NOT_READY
        return _refuse(str(problem))
    except OSError as error:
        return _refuse(f"{error.filename or 'a process'}: {error.strerror}")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_NOT_READY
    verdict = judge(injection, records)
    lines = verdict.lines() if verdict.is_ready else [*verdict.lines(), f"  see ftslurm report {directory}"]
    show("".join(f"{line}\n" for line in lines))
    return EXIT_READY if verdict.is_ready else EXIT_NOT_READY


def _end(number: int, frame: object) -> None:
    for further in ENDING:
        # What was started is being killed.
        signal.signal(further, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _refuse(text: str) -> int:
    print_error(f"ftslurm rehearse: {text}")
    return EXIT_USAGE
