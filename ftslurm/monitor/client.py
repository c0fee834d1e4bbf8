"""The training script's interface to its agent: heartbeats, sections, steps, and their time-outs.

All calls are fire and forget: they neither block nor raise into the training loop. A frequent call is a store into the
rank's heartbeat page (see `heartbeat_page`); a rare one writes a line into the node's pipe, and if that is full or gone
the line is dropped and counted. Outside an agent, in forked children and in multiprocessing's, every call does nothing:
a data-loader process is not its rank.

For users of NVRx's RankMonitorClient: `start_section`, `end_section`, `end_all_sections`, `state_dict` and
`load_state_dict` are called as there; `send_heartbeat` is `heartbeat`; there is nothing to initialise and to shut
down, but `workload_finished`; and the time-outs are learned by the agents, without
`calculate_and_set_hb_timeouts`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

import ftslurm
from ftslurm.monitor import dump_signal, heartbeat_page
from ftslurm.monitor.link import AgentLink, write_line
from ftslurm.monitor.section import NoSection, Section

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ftslurm.monitor.timeouts import Learned

VERSION = 1
_NO_SECTION = NoSection()


def heartbeat() -> None:
    """Send a heartbeat; the first one starts the watch for the next.

    Costs a fraction of a microsecond; see `set_timeouts` for how long the next may take.
    """
    try:
        _beat()
    except Exception as problem:
        _swallow(problem)  # A monitoring error must not end the training run.


def progress(step: int) -> None:
    """Report that this rank has reached training step `step`: for the report ("failed at step 1200") and slow ranks.

    It counts as progress for `--hang-timeout`, but not as a heartbeat: it does not start the heartbeat watch.
    """
    try:
        _step(int(step))
    except Exception as problem:
        _swallow(problem)


def loading(path: str | os.PathLike[str]) -> None:
    """Report the checkpoint that this rank is about to load; the last call before the first step counts.

    After two starts from the same one that failed without a step gained, it is called bad: in the report, and for the
    workers of later rounds by `FTSLURM_AVOID_CHECKPOINT`, which has the bad paths as they were given here, one a line.

    Args:
        path: the same on all ranks, as of a directory of shards. All of them make the call, as each may be the first to
            fail.
    """
    try:
        agent = _connect()
        directory = os.environ.get("FTSLURM_RECORD_DIR")
        if agent is not None and directory:
            from ftslurm.monitor.loading import write

            write(directory, os.fspath(path))
    except Exception as problem:
        _swallow(problem)


def report_automatically(stop: Callable[[], object]) -> AgentLink | None:
    """Return this rank's link for heartbeats and steps that the script knows nothing of; see `optimizer_steps`.

    None: this process is no rank, or its script reports by itself.

    Args:
        stop: called when the script reports by itself from now on, before what was stored is withdrawn.
    """
    global _beat, _step
    agent = _connect()
    if agent is None:
        return None
    words = agent.words
    if (words[heartbeat_page.BEATS] or words[heartbeat_page.STEPS]) and not words[heartbeat_page.AUTOMATIC]:
        return None

    def take_over() -> None:
        global _beat, _step
        stop()
        heartbeat_page.withdraw_automatic(words)
        _beat, _step = agent.beat, agent.step

    def beat() -> None:
        take_over()
        _beat()

    def step(number: int) -> None:
        take_over()
        _step(number)

    _beat, _step = beat, step
    return agent


def excuse(seconds: float) -> None:
    """Suspend this rank's time-outs until `seconds` from now, because it waits within ftslurm.

    Not for scripts. Unlike a heartbeat it does not start the heartbeat watch, and it covers open sections too.
    """
    try:
        agent = _connect()
        if agent is not None:
            agent.words[heartbeat_page.EXCUSED_NS] = time.monotonic_ns() + int(seconds * 1e9)
    except Exception as problem:
        _swallow(problem)


def section(name: str, timeout: float | None = None) -> Section | NoSection:
    """Return the section `name` of this rank, for `with` or as a decorator of (also async) functions.

    A section that is open longer than its time-out is a hang. Every open section counts, sections may overlap and lie
    in each other; but one name is open once: opening it again is reported and does no harm.

    Args:
        name: 1 to 40 bytes; a rank may have 37 of them. More are reported, and not watched.
        timeout: seconds, from now on, `math.inf` for none; overrides the command line and learned values.
    """
    try:
        found = _known.get(name)
        if found is None or (timeout is not None and timeout != found.timeout) or found.book.unsent:
            return _find_section(name, timeout)
        return found
    except Exception as problem:
        _swallow(problem)
        return _NO_SECTION


def start_section(name: str, timeout: float | None = None) -> None:
    """Open the section `name`; see `section`."""
    try:
        found = section(name, timeout)
        if isinstance(found, Section):
            found.start()
    except Exception as problem:
        _swallow(problem)


def end_section(name: str) -> None:
    """Close the section `name`; one that is not open is reported."""
    try:
        found = section(name)
        if isinstance(found, Section):
            found.end()
    except Exception as problem:
        _swallow(problem)


def end_all_sections() -> None:
    """Close every section of this rank that is open, for example after an exception was caught."""
    try:
        if _agent is not None:
            _agent.book.close_all()
    except Exception as problem:
        _swallow(problem)


def workload_finished() -> None:
    """Stop watching this rank (except for torch's timers): the rest of the program has no time-out."""
    try:
        agent = _connect()
        if agent is not None:
            agent.finish()
    except Exception as problem:
        _swallow(problem)


def set_timeouts(
    *,
    heartbeat: float | None = None,
    initial: float | None = None,
    sections: Mapping[str, float] | None = None,
    out_of_section: float | None = None,
) -> None:
    """Set this rank's own time-outs, from now on, for what runs already too.

    They override those of the command line and learned ones. Seconds; `math.inf`: not watched; None: unchanged. An
    invalid value is reported and ignored.

    Args:
        heartbeat: from one heartbeat to the next.
        initial: from the start of the process to the first heartbeat.
        sections: each section's, by name.
        out_of_section: with no section open, once one was.
    """
    try:
        agent = _connect()
        if agent is not None:
            agent.set_own(heartbeat, initial, sections or {}, out_of_section)
    except Exception as problem:
        _swallow(problem)


def state_dict() -> dict[str, Any]:
    """Return the time-outs learned in this run, as plain data for a checkpoint.

    Needed only if a checkpoint is continued in another run directory: within a run the agents keep them.
    """
    try:
        return _state()
    except Exception:
        return {"version": VERSION, "timeouts": {}}


def load_state_dict(state: Mapping[str, Any]) -> None:
    """Apply the result of `state_dict` of an earlier run to this rank, where no time-out is configured.

    Of each time-out learned in this run and in the state, the longer one applies. An invalid state is ignored, with a
    line on the standard error.
    """
    try:
        _load(state)
    except Exception as problem:
        write_line(f"load_state_dict: ignored, the state is not one of ours: {type(problem).__name__}: {problem}"[:300])


def _swallow(problem: Exception) -> None:
    """Suppress ftslurm's own errors; raise an exception that a signal handler of the user raised during a call."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename if trace is not None else __file__
    standard = file.startswith((_STANDARD, "<frozen")) and "-packages" not in file
    if not (standard or file.startswith(_HOME)):
        raise problem


_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STANDARD = os.path.dirname(os.__file__)
_agent: AgentLink | None = None
_connected = False
_lock = threading.RLock()
_known: dict[str, Section] = {}
_loaded: Learned | None = None


def _connect() -> AgentLink | None:
    """Connect at the first call; None: this process has no agent."""
    if not _connected:
        with _lock:
            _connect_once()
    return _agent


def _connect_once() -> None:
    global _agent, _connected, _known, _beat, _step
    if _connected:
        return
    directory = os.environ.get("FTSLURM_RECORD_DIR")
    try:
        if directory and not ftslurm._is_forked and not _is_multiprocessing_child():
            words = heartbeat_page.open_writer(directory)
            if words is not None:
                _agent = AgentLink(words, os.environ)
                # Already there in a script that ftslurm started; not so behind a shell.
                dump_signal.install(directory)
    except Exception as problem:
        _swallow(problem)
        write_line(f"this rank cannot be watched: {type(problem).__name__}: {problem}"[:300])
    if _agent is None:
        _beat, _step = _nothing, _no_step
    else:
        _known, _beat, _step = _agent.known, _agent.beat, _agent.step
        if path := os.environ.get("FTSLURM_IMPORTS"):
            _beat, _step = _listing(_agent.beat, path), _listing(_agent.step, path)
    _connected = True


def _listing(function: Callable[..., None], path: str) -> Callable[..., None]:
    """Return what stands for `beat` or `step` until its second call, which lists what the rank has imported."""
    calls = 0

    def counted(*arguments: Any) -> None:
        nonlocal calls
        global _beat, _step
        function(*arguments)
        calls += 1
        if calls == 2 and _agent is not None:
            _beat, _step = _agent.beat, _agent.step
            from ftslurm.monitor.imports import write_list

            write_list(path)

    return counted


def _first_beat() -> None:
    _connect()
    if _beat is not _first_beat:
        _beat()


def _first_step(step: int) -> None:
    _connect()
    if _step is not _first_step:
        _step(step)


def _nothing() -> None:
    """`_beat` of a process without an agent."""


def _no_step(step: int) -> None:
    """`_step` of a process without an agent."""


_beat: Callable[[], None] = _first_beat
_step: Callable[[int], None] = _first_step


def _find_section(name: str, timeout: float | None) -> Section | NoSection:
    agent = _connect()
    if agent is None:
        return _NO_SECTION
    found = agent.find_section(name)
    if (timeout is not None and agent.set_section(name, timeout)) or agent.book.unsent:
        agent.notify_timeouts()
    return found


def _is_multiprocessing_child() -> bool:
    module: Any = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None


def _state() -> dict[str, Any]:
    from ftslurm.dataclasses import replace
    from ftslurm.monitor import expiry, timeouts

    agent = _connect()
    known = agent.learned if agent else None
    if _loaded is not None:
        earlier = known.timeouts if known else timeouts.Spans()
        rounds = max(_loaded.rounds, known.rounds if known else 0)
        known = timeouts.Learned(timeouts.widest(earlier, _loaded.timeouts), rounds)
    words: Any = agent.words if agent else None
    page = heartbeat_page.decode(words.tobytes()) if words is not None else None
    if page is not None and page.opted_in:
        # The start of this process and the data of other ranks are available to the agents only.
        observed = replace(expiry.longest(page, 0.0, timeouts.Spans()), silent=1)
        known = timeouts.learn(known, observed)
    content = timeouts.learned_json(known) if known else {"timeouts": {}}
    return {"version": VERSION, **content}


def _load(state: Mapping[str, Any]) -> None:
    global _loaded
    from ftslurm.monitor.timeouts import read_learned

    if state["version"] != VERSION:
        raise ValueError(f"its version is {state['version']!r:.40}, expected {VERSION}")
    _loaded = read_learned(state)
    agent = _connect()
    if agent is not None:
        agent.set_loaded(_loaded)


def _forget() -> None:
    """In a forked child: its calls do not count for the rank, and it must not wait for a lock never released."""
    global _agent, _connected, _known, _beat, _step, _lock
    if _agent is not None:
        _agent.disown()
    _lock = threading.RLock()
    _agent, _connected, _known = None, True, {}
    _beat, _step = _nothing, _no_step


# A child forked before the first call must not become the writer either.
os.register_at_fork(after_in_child=_forget)
