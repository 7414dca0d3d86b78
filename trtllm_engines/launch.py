"""The words that start a server whose target is cut into ranks. Not run yet, on no machine."""

from __future__ import annotations

from collections.abc import Sequence

RANK = ("python3", "-m", "trtllm_engines.runtime.rank")
# The containers run as root, which mpirun refuses without being told. By default it would tie a process to one core or
# socket, and the server with all its models is one process to it.
MPIRUN = ("mpirun", "--allow-run-as-root", "--bind-to", "none")


def with_ranks(server: Sequence[str], ranks: int) -> list[str]:
    """The server as rank 0 of `ranks` processes; as it is for one."""
    if ranks == 1:
        return list(server)
    return [*MPIRUN, "-n", "1", *server, ":", "-n", str(ranks - 1), *RANK]
