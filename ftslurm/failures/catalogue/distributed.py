"""Causes of torch.distributed and its libraries."""

from __future__ import annotations

from ftslurm.failures.catalogue.cause import CASCADE, GPU, NETWORK, OTHER_NODE, POINTLESS, PRIMARY, Cause
from ftslurm.failures.evidence import Evidence
from ftslurm.failures.predicates import (
    UNRESOLVED,
    distributed,
    either,
    exception,
    interrupted_wait,
    nccl,
    nccl_stuck,
    os_error,
    tail,
    unresolved,
    watchdog,
)
from ftslurm.failures.reason import CUT
from ftslurm.failures.retryability import OTHER_FAILED, PERHAPS, WAIT_TIMED_OUT

_PEERS = "A rank waited for another one in vain: look for a rank that stopped, hung or took another path."
_TORCH = ("RuntimeError", "ValueError", "DistBackendError", "DistError")
_WATCHDOG = (
    r"(?m)^(\[rank\d+\]:)?\s*(\[[EF][^\]\n]*ProcessGroupNCCL\.cpp:\d+\].*([Ww]atchdog|timeout|aborted)"
    r"|what\(\): .*watchdog thread terminated with exception)"
)


def _watchdog_of_others(e: Evidence) -> bool:
    """Match an abort by torch's watchdog of NCCL, but for an error of the rank's own device."""
    return tail("SIGABRT", _WATCHDOG)(e) and not e.watchdog_error.startswith(("CUDA", "HIP"))


ROWS: tuple[Cause, ...] = (
    Cause("port-in-use", "port in use", PRIMARY,
          either(distributed(r"EADDRINUSE|[Aa]ddress already in use|server socket has failed to listen"), os_error(98)),
          "Another process holds the port. MASTER_PORT: let ftslurm choose it; a server of the program's own: each rank"
          " of a node needs another port.",
          not_for="a refused connection"),
    Cause("nccl-usage", "NCCL used wrongly", PRIMARY, distributed(r"ncclInvalidUsage|Duplicate GPU detected"),
          "Usually two ranks on one GPU: set the device from LOCAL_RANK.",
          not_for="an NCCL error that follows from a dead peer"),
    Cause("nccl-memory", "NCCL ran out of GPU memory", PRIMARY,
          nccl(r"[Cc]uda failure.{0,20}out of memory|Failed to CUDA (m|c)alloc"),
          "NCCL needs some hundred MiB per communicator: leave room for it, or use fewer process groups.",
          not_for="CUDA out of memory in the model itself"),
    Cause("nccl-shm", "NCCL has no room in /dev/shm", PRIMARY,
          either(nccl(r"/dev/shm|shared memory segment|No space left on device"),
                 tail("SIGBUS", r"NCCL WARN .{0,100}(?:/dev/shm/|shared memory segment)")),
          "A larger /dev/shm (containers: --shm-size), or remove old nccl-* files in it.",
          not_for="a full disk", restart=OTHER_NODE),
    Cause("nccl-interface", "NCCL found no network interface", PRIMARY,
          nccl(r"[Nn]o socket interface found|No (IP )?interface found|NET/\w+ ?: ?(No|Unable to find)"),
          "Check NCCL_SOCKET_IFNAME and NCCL_IB_HCA against the interfaces of this node (ip link, ibstat).",
          not_for="a connection that breaks in use", restart=OTHER_NODE),
    Cause("nccl-rank-twice", "two processes are the same rank", PRIMARY,
          nccl(r"rank \d+ of \d+ ranks has already checked in"),
          "The launch gave a rank twice: compare RANK and WORLD_SIZE with the processes that start on each node.",
          not_for="a rank whose address is not reached", restart=POINTLESS),
    Cause("nccl-route", "NCCL cannot reach another rank's address", PRIMARY,
          nccl(r"(Connect to \S+ failed ?: ?|connect returned )(No route to host|Network is unreachable"
               r"|Software caused connection abort)"),
          "See which interface NCCL uses (NCCL_SOCKET_IFNAME; 169.254 is link-local), and the route from this node.",
          not_for="a peer that has ended and refuses connections", restart=OTHER_NODE, symptom_of=NETWORK),
    # The peer's queue pair is gone when its process is: statuses 5 (flushed), 12 and 13 (retries exceeded).
    Cause("nccl-ib-peer", "an InfiniBand or RoCE peer did not answer", CASCADE,
          nccl(r"NET/IB ?: ?Got completion.{0,120}status=(\w+\()?(5|12|13)\b|[Rr]etry (count|counter) exceeded"),
          "If no rank ended before: check device and port (ibstat, cable, switch), and the peer's; NCCL_IB_TIMEOUT for"
          " a congested fabric.",
          not_for="a device that reports an error of its own", blame=PERHAPS, symptom_of=NETWORK),
    Cause("nccl-ib", "an InfiniBand or RoCE operation failed", PRIMARY,
          nccl(r"NET/IB ?: ?Got (completion|async)|NET/IB.{0,60}(catastrophic|fatal)|IBV_WC_|ibv_\w+ failed"
               r"|[Pp]ort error"),
          "Check that device and port (ibstat, cable, switch), and the peer's.",
          not_for="a peer that no longer answers", restart=OTHER_NODE, blame=PERHAPS, symptom_of=NETWORK),
    Cause("nccl-truncated", "NCCL received a message of another size", PRIMARY, nccl("Message truncated"),
          "Ranks disagree about a collective, or two jobs share a port; after a restart it is usually gone.",
          not_for="a collective of other shapes, which torch's DETAIL mode names"),
    Cause("nccl-version", "the ranks' NCCL, CUDA or GPUs do not match", PRIMARY,
          nccl(r"[Mm]is-?match|invalid device function|no kernel image|[Uu]nsupported (GPU|version)"
               r"|different (NCCL|CUDA)"),
          "Use one container or environment and one type of GPU on all nodes.",
          not_for="collectives that do not match", restart=POINTLESS),
    Cause("nccl-stuck", "NCCL's watchdog got stuck on this rank: a CUDA call or the GIL may have been blocked", PRIMARY,
          nccl_stuck,
          "See where its threads were (py-spy, gdb); a longer wait: TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC.",
          not_for="a collective that waited for other ranks", blame=PERHAPS, symptom_of=GPU),
    Cause("model-mismatch", "the ranks' models differ", PRIMARY,
          exception(*_TORCH, text="DDP expects same model across all ranks|in this process with sizes"
                    r"|appears not to match (sizes|strides) of the same param"),
          "Build the same model on all ranks: look for configuration, files or randomness that differ between them.",
          not_for="a checkpoint of another model", restart=POINTLESS, behind=True),
    Cause("collective-mismatch", "the ranks' collectives do not match", PRIMARY,
          either(exception(*_TORCH, text=r"mismatch between collectives"
                           r"|[Cc]ollective\w* .{0,60}(mismatch|inconsistent)"),
                 tail("SIGABRT", "gloo::EnforceNotMet'.*\n.*distributed collective mismatch")),
          "Compare the ranks' code paths and shapes at this call; TORCH_DISTRIBUTED_DEBUG=DETAIL names both.",
          not_for="a rank that did not come to the collective", behind=True),
    Cause("ddp-unused", "DDP: a parameter had no gradient, or two", PRIMARY,
          exception("RuntimeError", text="Expected to have finished reduction in the prior iteration|Expected to mark a"
                    " variable ready only once|Parameter indices which did not receive grad"),
          "find_unused_parameters=True, or static_graph=True for checkpointed blocks; the message names parameters.",
          not_for="ranks with different models", restart=POINTLESS),
    Cause("late-rank", "other ranks did not reach a monitored barrier", CASCADE,
          distributed("failed to pass monitoredBarrier|timed out in monitoredBarrier|processed in monitoredBarrier"),
          "The message names the ranks that did not come: look where they were.",
          not_for="the ranks that the message names", behind=True),
    Cause("master-name", "the name of the master cannot be resolved", PRIMARY,
          either(distributed(UNRESOLVED), unresolved, exception("ValueError", text=r"\Ahost not found: ")),
          "Check MASTER_ADDR: one host name or address, which the script must not replace under ftslurm. Then name"
          " resolution on this node.",
          not_for="a master that does not answer"),
    Cause("master-unreachable", "the master at MASTER_ADDR does not answer", CASCADE,
          either(distributed(r"(?s)client socket has (timed out|failed)|\Aconnect\(\) timed out"
                             r"|\A(?!.*NCCL).*(No route to host|Network is unreachable)"),
                 exception("RendezvousConnectionError")),
          "Look for the end of rank 0. If it lives, the script may set MASTER_ADDR or MASTER_PORT.",
          not_for="a connection that worked before", behind=True, symptom_of=NETWORK),
    Cause("rendezvous-closed", "torchrun's rendezvous was closed by another agent", CASCADE,
          exception("RendezvousClosedError", "RendezvousGracefulExitError"),
          "An agent ended before this one joined: look for its failure; the next run needs another --rdzv-id.",
          not_for="a rendezvous that is not reached", behind=True),
    Cause("stop-reaction", "the framework's reaction to a stop", CASCADE,
          exception("SIGTERMException", "SignalException", "TerminatedException"),
          "It is how the framework ends after SIGTERM: what sent that is the reason.",
          not_for="a failure of the script"),
    Cause("nccl-timeout", "NCCL time-out", CASCADE,
          distributed(r"[Ww]atchdog caught collective operation timeout|NCCL.*[Tt]imed? ?out"), _PEERS,
          not_for="the rank that the others waited for", behind=True, symptom_of=NETWORK),
    Cause("peer-reset", "connection to another rank broke", CASCADE,
          either(distributed(r"Connection (closed|reset) by (remote )?peer|ncclRemoteError|remote process exited"
                             r"|connectFullMesh failed"
                             r"|Broken pipe|[Ss]ocket closed|Connection refused"
                             r"|recvValue failed|[Ff]ailed to recv, got 0 bytes|Read (error|timeout)|writev?: "),
                 watchdog("remote process exited or there was a network error")),
          "The rank at the other end ended first: look for its failure.",
          not_for="a broken connection to a server of the user's own", behind=True, symptom_of=NETWORK),
    Cause("cut-in-collective", "an exception in a call to other ranks, cut off", CASCADE,
          lambda e: e.message == CUT and bool(e.files) and "/torch/distributed/" in e.files[-1],
          "The log ends before its text: see the logs of the other ranks, one of which may have failed before.",
          not_for="an exception whose text is known"),
    Cause("collective-timeout", "time-out waiting for other ranks", CASCADE,
          either(distributed(r"[Tt]imed out|[Tt]imeout|DistStoreError|wait timeout"),
                 exception("RuntimeError", text=WAIT_TIMED_OUT), interrupted_wait), _PEERS,
          not_for="the rank that the others waited for", behind=True, symptom_of=NETWORK),
    Cause("peer-failed", "another rank failed", CASCADE,
          either(exception(text=OTHER_FAILED), tail("SIGABRT", OTHER_FAILED)),
          "Look for the failure of that rank; this one only reports it.",
          not_for="a message that names the failed rank", behind=True),
    Cause("peer-lost", "other ranks did not answer the peer heartbeat", CASCADE, exception("PeerLostError"),
          "Check the ranks that it names.", not_for="a rank that answers with a wrong token"),
    Cause("horovod-end", "Horovod was shut down, as another rank ended or stalled", CASCADE,
          exception(text="Horovod has been shut down"), "Look for the rank that ended or stalled first.",
          not_for="an exception of the script", behind=True),
    Cause("round-over", "a rank of a past round resumed", CASCADE, exception("RoundIsOver"),
          "Look for the end of that round; the fence prevented its data from replacing newer data.",
          not_for="a rank of the running round"),
    Cause("nccl", "NCCL error", CASCADE,
          distributed(r"(?s)\A(?!.*(Cuda failure|ncclUnhandledCudaError|no GPUs found)).*(NCCL|nccl)"),
          "Run with NCCL_DEBUG=WARN for NCCL's own reason if no other rank explains this.",
          not_for="a warning or a message that only mentions NCCL", behind=True, symptom_of=NETWORK),
    Cause("nccl-abort", "NCCL's watchdog aborted the process", CASCADE, _watchdog_of_others, _PEERS,
          not_for="an abort after a line that only mentions the watchdog", symptom_of=NETWORK),
)  # fmt: skip
