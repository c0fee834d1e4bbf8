"""Which rank hung, from what faulthandler wrote of all ranks."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import pytest

from ftslurm.monitor.faulthandler_text import Frame, Reader
from ftslurm.monitor.stack_classifier import MAY_WAIT, WAITS, WORKS, classify, telling_thread
from ftslurm.monitor.stacks_file import LIMIT, RankStacks, Stacks, encode, parse
from ftslurm.monitor.triage import (
    ELSEWHERE,
    MISMATCH,
    NO_ANSWER,
    NONE,
    ODD,
    OVERDUE,
    Triage,
    describe,
    finished,
    tree,
    triage,
)
from ftslurm.report.rank_stacks import only_call
from ftslurm.text import ranges

LIB = "/opt/conda/lib/python3.11"
TORCH = f"{LIB}/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
LOADER = f"{TORCH}/utils/data/dataloader.py"
MAIN = ("/home/ann/lm/train.py", 120, "<module>")
STEP = ("/home/ann/lm/train.py", 88, "step")
REDUCE = (C10D, 3252, "all_reduce")
GATHER = (C10D, 4000, "all_gather")
Call = tuple[str, int, str]
ALL_REDUCE = (MAIN, STEP, (f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper"), REDUCE)
ALL_GATHER = (MAIN, ("/home/ann/lm/eval.py", 12, "score"), GATHER)
DATA = (MAIN, (LOADER, 725, "__next__"), (f"{TORCH}/utils/data/_utils/fetch.py", 54, "fetch"))
READ = (*DATA, ("/home/ann/lm/data.py", 40, "__getitem__"))
FOOT = (("/shared/ftslurm/boot/worker.py", 17, "<module>"), ("/shared/ftslurm/worker.py", 80, "main"))
RUNPY = (("<frozen runpy>", 226, "run_module"), ("<frozen runpy>", 88, "_run_code"))


def thread(*calls: Call, head: str = "Thread 0x00007f2b1c3ff640") -> str:
    """Return a thread as faulthandler writes it; `calls`: outermost first."""
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in reversed(calls)]
    return "\n".join([f"{head} (most recent call first):", *lines]) + "\n"


def rank(number: int, *calls: Call, why: str | None = None, problem: str | None = None, text: str = "") -> RankStacks:
    text = text or (thread(*FOOT, *calls, head="Current thread 0x00007f4f70cb3b80") if calls else "")
    return RankStacks(number, f"n{number // 8}", 7, Stacks(number % 8, text, (), problem), why)


def judged(*ranks: RankStacks) -> Triage:
    return triage(ranks)


def test_the_rank_that_is_elsewhere_while_the_others_wait_for_it_is_named() -> None:
    ranks = [rank(n, *(READ if n == 412 else ALL_REDUCE)) for n in range(1024)]
    random.Random(1).shuffle(ranks)
    found = judged(*ranks)
    assert found.verdict == ODD
    assert [group.ranks for group in found.suspects] == [(412,)]
    assert found.summary == (
        "1,023 ranks in all_reduce at train.py:88; rank 412 (node n51) in DataLoader at data.py:40"
    )
    assert ranges(found.groups[0].ranks) == "0-411, 413-1023"


def test_the_rank_whose_time_out_expired_first_is_not_blamed_for_that() -> None:
    found = judged(rank(0, *ALL_REDUCE, why="no heartbeat for 30 s"), rank(1, *READ))
    assert found.suspects[0].ranks == (1,)
    assert found.expired == (0,)


def test_a_rank_that_is_stopped_is_the_suspect_whatever_the_others_do() -> None:
    found = judged(*[rank(n, *ALL_REDUCE) for n in range(3)], rank(3, problem="stopped (SIGSTOP)"))
    assert (found.verdict, found.summary) == (
        NO_ANSWER,
        "3 ranks in all_reduce at train.py:88; rank 3 (node n0) stopped (SIGSTOP)",
    )


def test_a_rank_in_d_state_is_the_suspect_and_its_place_is_reported_where_another_thread_wrote_it() -> None:
    d = "in uninterruptible sleep (D) in rpc_wait_bit_killable"
    found = judged(rank(0, *ALL_REDUCE), rank(1, *ALL_REDUCE), rank(2, *READ, problem=d))
    assert found.verdict == NO_ANSWER
    assert describe(found.suspects[0]) == f"{d}, in DataLoader at data.py:40"


def test_a_rank_that_had_ended_is_what_the_others_wait_for() -> None:
    found = judged(rank(0, *ALL_REDUCE), rank(1, problem="had ended"))
    assert found.summary == "rank 0 (node n0) in all_reduce at train.py:88; rank 1 (node n0) had ended"


def test_ranks_that_cannot_answer_at_all_prove_nothing() -> None:
    """A shell script, a program in C: all of them are like that, and none is to blame for it."""
    no = "no answer to the dump signal: no Python script that ftslurm started"
    found = judged(*[rank(n, problem=no) for n in range(4)])
    assert found.verdict == NONE
    assert found.summary == f"4 ranks (0-3) {no}: no rank gave its stacks"


def test_one_that_gives_no_answer_is_suspected_if_all_others_wait() -> None:
    found = judged(rank(0, *ALL_REDUCE), rank(1, *ALL_REDUCE), rank(2, problem="no answer within 2.0 s"))
    assert (found.verdict, found.suspects[0].ranks) == (ODD, (2,))
    found = judged(rank(0, *ALL_REDUCE), rank(1, *READ), rank(2, problem="no answer within 2.0 s"))
    assert found.suspects[0].ranks == (1,)


def test_different_collectives_are_reported_as_such() -> None:
    found = judged(*[rank(n, *ALL_REDUCE) for n in range(3)], rank(3, *ALL_GATHER))
    assert (found.verdict, found.suspects[0].ranks) == (MISMATCH, (3,))
    assert found.summary == (
        "3 ranks in all_reduce at train.py:88; rank 3 (node n0) in all_gather at eval.py:12: not the same collective"
    )
    even = judged(rank(0, *ALL_REDUCE), rank(1, *ALL_GATHER))
    assert (even.verdict, even.suspects) == (MISMATCH, ())
    assert "different collectives, none of them the odd one" in even.summary


def test_the_same_collective_from_two_lines_is_a_mismatch_too() -> None:
    other = (MAIN, ("/home/ann/lm/train.py", 95, "step"), REDUCE)
    assert judged(*[rank(n, *ALL_REDUCE) for n in range(3)], rank(3, *other)).verdict == MISMATCH


def test_where_all_are_at_one_place_no_rank_is_named() -> None:
    found = judged(*[rank(n, *ALL_REDUCE, why="no heartbeat" if n == 2 else None) for n in range(4)])
    assert (found.verdict, found.suspects) == (NONE, ())
    assert found.summary == (
        "4 ranks (0-3) in all_reduce at train.py:88: all at the same place, none of them the odd one"
        " (the time-out was that of rank 2)"
    )


def test_where_no_rank_waits_visibly_the_one_that_is_elsewhere_is_still_named() -> None:
    """`loss.item()` and `work.wait()` are C: no frame of theirs is seen."""
    found = judged(*[rank(n, MAIN, STEP) for n in range(3)], rank(3, *READ))
    assert (found.verdict, found.summary) == (
        ELSEWHERE,
        "3 ranks in step at train.py:88; rank 3 (node n0) in DataLoader at data.py:40",
    )


def test_of_several_that_are_elsewhere_the_one_whose_time_was_over_is_named() -> None:
    found = judged(*[rank(n, MAIN, STEP) for n in range(5)], rank(5, MAIN), rank(6, *READ, why="no heartbeat"))
    assert (found.verdict, [group.ranks for group in found.suspects]) == (OVERDUE, [(6,)])


def test_a_rank_that_cannot_answer_and_whose_time_was_over_is_named_before_one_that_is_just_elsewhere() -> None:
    mute = rank(1, why="no heartbeat", problem="no answer within 2.0 s: it blocks the signal")
    found = judged(*[rank(n, MAIN, STEP) for n in (0, 3, 4)], mute, rank(2, MAIN))
    assert (found.verdict, [group.ranks for group in found.suspects]) == (OVERDUE, [(1,)])


def test_of_ranks_at_one_place_only_those_whose_time_was_over_are_named_with_their_own_nodes() -> None:
    ranks = [rank(n, MAIN, STEP) for n in range(20)]
    found = judged(*ranks, rank(20, *READ), rank(40, *READ, why="no heartbeat"))
    assert (found.verdict, found.suspects[0].ranks, found.suspects[0].nodes) == (OVERDUE, (40,), ("n5",))
    assert sorted(number for group in found.groups for number in group.ranks) == [*range(21), 40]
    assert found.summary.endswith("rank 40 (node n5) in DataLoader at data.py:40")


def test_a_rank_whose_time_was_over_where_most_ranks_are_is_late_because_of_the_one_that_is_elsewhere() -> None:
    found = judged(*[rank(n, MAIN, STEP, why="no heartbeat") for n in range(3)], rank(3, *READ))
    assert (found.verdict, [group.ranks for group in found.suspects]) == (ELSEWHERE, [(3,)])


POLL = (MAIN, ("/usr/lib/python3.11/selectors.py", 468, "select"))


@pytest.mark.parametrize(("moved", "named"), [(0.1, [1]), (4.0, [])])
def test_of_ranks_at_one_place_the_one_that_alone_gave_no_sign_of_life_is_named(moved: float, named: list[int]) -> None:
    late = replace(rank(1, *POLL, why="no sign of life for 5 s"), still=(5.1, 0.0))
    found = judged(replace(rank(0, *POLL), still=(moved, 0.0)), late, replace(rank(2, *POLL), still=(moved, 0.0)))
    assert [each for group in found.suspects for each in group.ranks] == named
    assert found.verdict == (OVERDUE if named else NONE)


def test_two_ranks_at_two_places_without_a_collective_are_only_listed() -> None:
    found = judged(rank(0, MAIN, STEP, why="x"), rank(1, *READ))
    assert found.verdict == NONE
    assert found.summary.endswith("none of them the odd one (the time-out was that of rank 0)")


def test_one_that_computes_its_gradients_while_the_others_wait_is_the_odd_one_but_not_the_reverse() -> None:
    backward = (MAIN, STEP, (f"{TORCH}/autograd/graph.py", 829, "_engine_run_backward"))
    found = judged(*[rank(n, *ALL_REDUCE) for n in range(3)], rank(3, *backward))
    assert (found.verdict, found.suspects[0].ranks) == (ODD, (3,))
    found = judged(*[rank(n, *backward) for n in range(3)], rank(3, *READ))
    assert (found.verdict, found.summary) == (
        ODD,
        "3 ranks in backward at train.py:88; rank 3 (node n0) in DataLoader at data.py:40",
    )


def test_that_nothing_was_collected_is_stated_plainly() -> None:
    assert judged().summary == "no stacks were collected"


def test_several_suspects_are_listed_smallest_first_and_the_rest_counted() -> None:
    ranks = [rank(n, *ALL_REDUCE) for n in range(20)]
    ranks += [rank(20 + n, MAIN, ("/home/ann/lm/data.py", 40 + n, "load")) for n in range(5)]
    found = judged(*ranks)
    assert [group.ranks for group in found.suspects] == [(n,) for n in range(20, 25)]
    assert found.summary.endswith("; 2 more elsewhere")


def test_the_tree_begins_with_what_all_have_in_common() -> None:
    found = judged(*[rank(n, *ALL_REDUCE) for n in range(3)], rank(3, *READ))
    (root,) = tree(found.groups)
    assert (root.ranks, root.frames) == ((0, 1, 2, 3), (Frame(*MAIN),))
    assert [(b.ranks, b.frames[0].function, b.children) for b in root.children] == [
        ((0, 1, 2), "step", ()),
        ((3,), "__next__", ()),
    ]
    assert tree(judged(rank(0, problem="stopped (SIGSTOP)")).groups) == ()


def test_the_frames_of_ftslurm_and_runpy_at_the_foot_are_left_out() -> None:
    text = thread(*FOOT, *RUNPY, MAIN, STEP, head="Current thread 0x00007f4f70cb3b80")
    (only,) = Reader().threads(text)
    assert only.frames == (Frame(*MAIN), Frame(*STEP))


@pytest.mark.parametrize(
    "head", ["Thread 0x00007f2b1c3ff640", "Current thread 0x00007f2b1c3ff640", "Thread 0x00007f2b1c3ff640 [loader 1]"]
)
def test_the_header_lines_of_all_versions_are_understood(head: str) -> None:
    (only,) = Reader().threads(thread(MAIN, head=head))
    assert only.frames == (Frame(*MAIN),)
    assert only.name == ("loader 1" if "loader" in head else "")
    assert only.current == head.startswith("Current")


def test_what_python_3_14_adds_and_what_is_cut_does_not_become_frames() -> None:
    text = (
        "Thread 0x00007f0000000001 [t] (most recent call first):\n  <no Python frame>\n\n"
        "Current thread 0x00007f0000000002 [python] (most recent call first):\n"
        '  Garbage-collecting\n  File ???, line ??? in f\n  File "a b, line 3 in c.py", line 7 in <lambda>\n  ...\n\n'
        "Current thread's C stack trace (most recent call first):\n"
        '  Binary file "/usr/bin/python3", at _PyEval_EvalFrameDefault+0x31 [0x5b27f7cd9aab]\n'
        "  <truncated rest of calls>\n"
    )
    first, second = Reader().threads(text)
    assert (first.frames, first.main) == ((), False)
    assert (second.main, second.cut) == (True, True)
    assert second.frames == (Frame("a b, line 3 in c.py", 7, "<lambda>"), Frame("???", 0, "f"))


def test_of_two_dumps_in_one_file_the_newer_one_counts() -> None:
    old, new = thread(*FOOT, MAIN, STEP), thread(*FOOT, MAIN, *ALL_GATHER)
    found = Reader().threads(old + new)
    assert [t.frames[-1].function for t in found] == ["all_gather"]


def test_a_rank_whose_main_thread_waits_for_another_is_shown_by_that_thread_and_where_it_waits() -> None:
    join = ("/usr/lib/python3.11/threading.py", 1119, "join")
    writer = thread(("/usr/lib/python3.11/threading.py", 1002, "_bootstrap"), ("/home/ann/lm/train.py", 18, "writer"))
    main = thread(*FOOT, ("/home/ann/lm/train.py", 24, "save"), join, head="Current thread 0x00007f4f70cb3b80")
    verdict = judged(rank(0, text=f"{writer}\n{main}"), *(rank(n, *ALL_REDUCE) for n in (1, 2)))
    (suspect,) = verdict.suspects
    assert suspect.ranks == (0,)
    assert describe(suspect) == "in writer at train.py:18 in a thread (the main one waits at train.py:24)"


def test_a_thread_that_only_sleeps_is_not_what_the_main_one_waits_for_in_a_queue() -> None:
    get = ("/usr/lib/python3.11/queue.py", 171, "get")
    monitor = thread(("/usr/lib/python3.11/threading.py", 1002, "_bootstrap"), ("/home/ann/lm/train.py", 23, "watch"))
    main = thread(*FOOT, ("/home/ann/lm/train.py", 28, "step"), get, head="Current thread 0x00007f4f70cb3b80")
    ranks = [rank(0, text=f"{monitor}\n{main}"), *(rank(n, *ALL_REDUCE) for n in (1, 2))]
    found = triage(ranks, {("/home/ann/lm/train.py", 23): "time.sleep"})
    assert describe(found.suspects[0]) == "in queue.get at train.py:28"
    found = triage(ranks, {("/home/ann/lm/train.py", 23): "sock.recv"})
    assert "at train.py:23 in a thread (the main one waits at train.py:28)" in describe(found.suspects[0])


def test_a_wait_for_a_pool_of_processes_is_not_explained_by_a_thread() -> None:
    pool = (("/usr/lib/python3.11/multiprocessing/pool.py", 367, "map"),
            ("/usr/lib/python3.11/threading.py", 320, "wait"))  # fmt: skip
    other = thread(("/usr/lib/python3.11/threading.py", 1002, "_bootstrap"), ("/home/ann/lm/train.py", 27, "log"))
    main = thread(*FOOT, ("/home/ann/lm/train.py", 30, "step"), *pool, head="Current thread 0x00007f4f70cb3b80")
    found = judged(rank(0, text=f"{other}\n{main}"), *(rank(n, *ALL_REDUCE) for n in (1, 2)))
    assert describe(found.suspects[0]) == "in multiprocessing.pool.map at train.py:30"


def test_what_a_library_imports_is_an_import_whatever_it_imports() -> None:
    importing = (
        ("/home/ann/lm/train.py", 10, "<module>"), (f"{TORCH}/optim/optimizer.py", 400, "__init__"),
        ("<frozen importlib._bootstrap>", 1176, "_find_and_load"),
        (f"{TORCH}/_dynamo/convert_frame.py", 1, "<module>"),
    )  # fmt: skip
    found = judged(rank(0, *importing), *(rank(n, *ALL_REDUCE) for n in (1, 2)))
    assert describe(found.suspects[0]) == "in an import at train.py:10"


def test_the_main_thread_is_the_last_one_listed_or_the_one_that_ftslurm_began() -> None:
    helper = thread(("/home/ann/lm/prefetch.py", 5, "fill"), head="Thread 0x00007f0000000001")
    found = Reader().threads(f"{helper}\n{thread(*FOOT, MAIN)}")
    assert [t.main for t in found] == [False, True]
    found = Reader().threads(f"{thread(*FOOT, MAIN)}\n{helper}")
    assert [t.main for t in found] == [True, False]
    found = Reader().threads(f"{helper}\n{thread(MAIN)}")
    assert [t.main for t in found] == [False, True]


NO_FRAME = "Current thread 0x00007f4f70cb3b80 (most recent call first):\n  <no Python frame>\n"
ENDED = "at the end of Python (the script had ended)"
RECORDER = (
    ("/shared/ftslurm/failures/recorder.py", 67, "exception"),
    ("<frozen importlib._bootstrap>", 1176, "_find_and_load"),
    ("/shared/ftslurm/lean_dataclasses.py", 92, "_make"),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NO_FRAME, ENDED),
        (NO_FRAME.replace("  <no", "  Garbage-collecting\n  <no"), ENDED),
        (thread((f"{LIB}/threading.py", 1590, "_shutdown")), ENDED),
        (
            f"{thread((f'{LIB}/threading.py', 1002, '_bootstrap'), ('/home/ann/lm/up.py', 5, 'send'))}\n"
            f"{thread((f'{LIB}/threading.py', 1590, '_shutdown'), head='Current thread 0x00007f4f70cb3b80')}",
            "at the end of Python, which waits for a thread at up.py:5",
        ),
        (
            thread((f"{LIB}/multiprocessing/util.py", 334, "_exit_function"), (f"{LIB}/x.py", 2, "join")),
            "at the end of Python, waiting for a child process",
        ),
        (thread(*FOOT), "in no Python code"),
        (thread(*FOOT, *RECORDER), "ending after an exception"),
        (thread(*FOOT, MAIN, (f"{LIB}/threading.py", 1590, "_shutdown")), "in threading._shutdown at train.py:120"),
    ],
)
def test_a_process_whose_script_is_over_is_at_no_place_of_the_script(text: str, expected: str) -> None:
    found = judged(*(rank(n, text=text) for n in range(4)))
    assert [describe(group) for group in found.groups] == [expected]
    assert (found.verdict, found.suspects) == (NONE, ())


def test_the_stack_of_the_thread_that_the_end_of_python_waits_for_is_shown() -> None:
    helper = thread((f"{LIB}/threading.py", 1002, "_bootstrap"), ("/home/ann/lm/up.py", 5, "send"))
    main = thread((f"{LIB}/threading.py", 1590, "_shutdown"), head="Current thread 0x00007f4f70cb3b80")
    found = judged(*(rank(n, text=f"{helper}\n{main}") for n in range(2)))
    assert [frame.function for frame in found.groups[0].frames] == ["_bootstrap", "send"]


def test_ranks_whose_script_is_over_are_waited_for_as_those_that_had_finished() -> None:
    found = judged(rank(0, *ALL_REDUCE), rank(1, text=NO_FRAME), rank(2, *ALL_REDUCE))
    assert (found.verdict, [group.ranks for group in found.suspects]) == (NO_ANSWER, [(1,)])
    found = judged(rank(0, *READ), rank(1, text=NO_FRAME), rank(2, text=NO_FRAME))
    assert [group.ranks for group in found.suspects] == [(0,)]


def test_of_a_main_thread_that_waits_for_another_one_the_other_ones_place_counts() -> None:
    join = (MAIN, (f"{LIB}/threading.py", 1119, "join"), (f"{LIB}/threading.py", 1139, "_wait_for_tstate_lock"))
    bootstrap = (f"{LIB}/threading.py", 1002, "_bootstrap")
    pin = (bootstrap, (f"{TORCH}/utils/data/_utils/pin_memory.py", 59, "_pin_memory_loop"))
    trainer = (bootstrap, STEP, REDUCE)
    parts = [thread(*pin, head="Thread 0x01"), thread(*trainer, head="Thread 0x02"), thread(*FOOT, *join)]
    shown = telling_thread(Reader().threads("\n".join(parts)))
    assert shown is not None
    assert shown.frames[-1] == Frame(*REDUCE)
    shown = telling_thread(Reader().threads("\n".join([parts[0], parts[2]])))
    assert shown is not None
    assert shown.main


@pytest.mark.parametrize(
    ("calls", "kind", "activity", "place"),
    [
        (ALL_REDUCE, WAITS, "all_reduce", "train.py"),
        ((MAIN, (C10D, 1, "gather_object"), (C10D, 2, "gather")), WAITS, "gather_object", "train.py"),
        ((MAIN, (C10D, 1, "init_process_group"), (C10D, 2, "_new_group")), WAITS, "init_process_group", "train.py"),
        ((MAIN, (f"{TORCH}/cuda/__init__.py", 9, "synchronize")), MAY_WAIT, "synchronize", "train.py"),
        ((MAIN, (f"{TORCH}/nn/parallel/distributed.py", 1, "forward"), STEP), WORKS, "step", "train.py"),
        ((*DATA, (f"{LIB}/queue.py", 1, "get"), (f"{LIB}/threading.py", 3, "wait")), WORKS, "DataLoader", "train.py"),
        (
            (MAIN, (f"{TORCH}/utils/cpp_extension.py", 2400, "load"), (f"{TORCH}/utils/file_baton.py", 4, "wait")),
            MAY_WAIT,
            "wait for the lock of an extension's build",
            "train.py",
        ),
        ((MAIN, (f"{TORCH}/serialization.py", 850, "save")), WORKS, "torch.save/load", "train.py"),
        ((MAIN, (f"{LIB}/socket.py", 706, "readinto")), WORKS, "network", "train.py"),
        ((MAIN, (f"{LIB}/json/decoder.py", 1, "decode")), WORKS, "json.decoder.decode", "train.py"),
        (((f"{LIB}/json/tool.py", 1, "main"),), WORKS, "main", "tool.py"),
        ((), WORKS, "", None),
    ],
)  # fmt: skip
def test_what_a_stack_is_doing(calls: tuple[Call, ...], kind: str, activity: str, place: str | None) -> None:
    does = classify([Frame(*call) for call in calls])
    assert (does.kind, does.activity) == (kind, activity)
    assert (does.place.file.rpartition("/")[2] if does.place else None) == place


def test_a_stacks_file_has_all_that_was_written_to_it() -> None:
    facts = (("State", "D (disk sleep)"), ("stack", "[<0>] a+0x1/0x2\n[<0>] b"))
    stacks = Stacks(4, thread(MAIN), facts, "in uninterruptible sleep (D)", "Thread 1 (idle)\n    read (libc.so)")
    data = encode(stacks, rank=412, node="n17", time_ns=9, why="section 'data' open for 62 s")
    assert data.startswith(b"# ftslurm stacks rank 412 local_rank 4 node n17 time_ns 9\n# why: section 'data' open")
    back = parse(data)
    assert back == RankStacks(
        412,
        "n17",
        9,
        Stacks(4, thread(MAIN).strip("\n"), facts, stacks.problem, stacks.native + "\n"),
        "section 'data' open for 62 s",
    )
    assert parse(encode(Stacks(0), rank=0, node="n1", time_ns=0)) == RankStacks(0, "n1", 0, Stacks(0))


def test_a_file_of_a_crash_or_of_nothing_is_not_taken_for_one_of_a_hang() -> None:
    assert parse(b"Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n") is None
    assert parse(b"") is None
    assert parse(b"# ftslurm stacks rank x local_rank 4 node n17 time_ns 9\n") is None


def test_nothing_in_a_file_breaks_its_form_or_its_bound() -> None:
    evil = Stacks(0, "x\x00\x1b[2J\n" * 400_000, (("State", "a\nb\x00"),), "p\n# why: q")
    data = encode(evil, rank=1, node="n 1\n", time_ns=1, why="w\nv")
    assert len(data) <= LIMIT
    back = parse(data)
    assert back is not None
    assert (back.node, back.why, back.stacks.problem) == ("n_1_", "w v", "p # why: q")
    assert b"\x00" not in data and b"\x1b" not in data


def test_damaged_files_never_raise() -> None:
    seeded = random.Random(4)
    good = encode(rank(3, *READ).stacks, rank=3, node="n1", time_ns=7, why="x")
    for _ in range(2_000):
        data = bytearray(good)
        for _ in range(seeded.randrange(1, 20)):
            at = seeded.randrange(len(data))
            if seeded.random() < 0.5:
                data[at] = seeded.randrange(256)
            else:
                del data[at : at + seeded.randrange(40)]
        found = parse(bytes(data))
        if found is not None:
            triage([found])


def test_the_work_grows_with_the_number_of_ranks_and_no_faster() -> None:
    """Counted in calls; each rank's thread addresses and one line of its library frames are its own."""

    def calls(number: int) -> int:
        ranks = []
        for n in range(number):
            call = (C10D, n, "all_reduce")
            idle = thread((f"{LIB}/threading.py", 5, "_bootstrap"), head=f"Thread 0x{n + 2**40:x}")
            main = thread(*FOOT, MAIN, *([STEP] * 10), call, head=f"Current thread 0x{n:x}")
            ranks.append(rank(n, text=f"{idle}\n{idle}\n{idle}\n{main}") if n != 41 else rank(n, *READ))
        count = 0

        def note(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(note)
        try:
            found = triage(ranks)
        finally:
            sys.setprofile(None)
        assert found.suspects[0].ranks == (41,)
        return count

    few, many = calls(128), calls(1024)
    assert few > 128, "something was counted"
    assert many < 8.5 * few


HELPER = ("/home/ann/lm/metric.py", 5, "reduce_metric")


def test_ranks_at_one_place_that_came_there_by_other_paths_are_groups_of_their_own() -> None:
    evaluates = (MAIN, ("/home/ann/lm/train.py", 50, "run"), ("/home/ann/lm/eval.py", 9, "score"), HELPER, REDUCE)
    trains = (MAIN, ("/home/ann/lm/train.py", 30, "run"), HELPER, REDUCE)
    found = judged(rank(0, *evaluates), *[rank(n, *trains) for n in range(1, 4)])
    assert (found.verdict, [group.ranks for group in found.suspects]) == (MISMATCH, [(0,)])
    assert [describe(group) for group in found.groups] == [
        "in all_reduce at metric.py:5 (from train.py:30)",
        "in all_reduce at metric.py:5 (from train.py:50)",
    ]
    (root,) = tree(found.groups)
    assert [branch.ranks for branch in root.children] == [(1, 2, 3), (0,)]


def test_stacks_that_differ_within_libraries_are_one_group_and_all_of_them_are_in_the_tree() -> None:
    other = (*ALL_REDUCE[:-1], (C10D, 3260, "all_reduce"))
    found = judged(rank(0, *ALL_REDUCE), rank(1, *other))
    assert [group.ranks for group in found.groups] == [(0, 1)]
    (root,) = tree(found.groups)
    assert root.ranks == (0, 1)
    assert [branch.ranks for branch in root.children] == [(0,), (1,)]


def test_a_rank_that_waits_for_the_others_is_not_the_one_they_wait_for() -> None:
    found = judged(rank(0, *ALL_REDUCE), *[rank(n, *READ) for n in range(1, 4)])
    assert (found.verdict, found.suspects) == (NONE, ())


@pytest.mark.parametrize(("calls", "verdict"), [(ALL_REDUCE, NO_ANSWER), (READ, NONE)])
def test_a_rank_that_had_finished_is_to_blame_only_if_the_others_wait_for_ranks(
    calls: tuple[Call, ...], verdict: str
) -> None:
    found = judged(rank(0, *calls), finished(1, 1, "n0", 5), rank(2, *calls))
    assert found.verdict == verdict
    assert "rank 1 (node n0) had finished with exit code 0 at step 5" in found.summary
    assert [group.ranks for group in found.suspects] == ([(1,)] if verdict == NO_ANSWER else [])


def test_the_rank_that_still_works_when_most_had_finished_keeps_the_job() -> None:
    found = judged(finished(0, 0, "n0", 5), rank(1, *READ), finished(2, 2, "n1", 5))
    assert [group.ranks for group in found.suspects] == [(1,)]


@pytest.mark.parametrize(
    ("calls", "name"),
    [
        ((MAIN, (f"{LIB}/queue.py", 171, "get"), (f"{LIB}/threading.py", 327, "wait")), "queue.get"),
        ((MAIN, (f"{LIB}/threading.py", 629, "wait"), (f"{LIB}/threading.py", 327, "wait")), "threading.wait"),
        ((MAIN, (f"{LIB}/subprocess.py", 548, "run"), (f"{LIB}/subprocess.py", 9, "wait")), "subprocess.run"),
        ((MAIN, (f"{LIB}/multiprocessing/queues.py", 103, "get")), "multiprocessing.queues.get"),
        ((MAIN, (f"{LIB}/concurrent/futures/_base.py", 4, "result")), "concurrent.futures._base.result"),
        ((MAIN, STEP), "time.sleep"),
    ],
)
def test_what_is_called_has_its_own_name(calls: tuple[Call, ...], name: str) -> None:
    does = classify([Frame(*call) for call in calls], {(STEP[0], STEP[1]): "time.sleep"})
    assert (does.kind, does.activity) == (WORKS, name)


def test_a_wait_in_c_for_the_device_is_a_wait() -> None:
    assert classify([Frame(*MAIN)], {MAIN[:2]: "loss.item"}).kind == MAY_WAIT


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("    time.sleep(3600)  # (for ever)", "time.sleep"),
        ("    if lock.acquire(timeout=-1):", "lock.acquire"),
        ("    total += loss.item()", "loss.item"),
        ("    x = f(g(y))", None),
        ("    x += 1", None),
        ("    print('a(b)')", "print"),
        ("def step(x):", None),
    ],
)
def test_the_only_call_in_a_line_is_named(line: str, name: str | None) -> None:
    assert only_call(line) == name
