"""Several runtimes behind one Backend: Ray's actors hold them, a router sends branches to them.

Ray starts, places and watches the processes; nothing here does. The driver keeps what every branch
consists of, so a worker may die at any time.
"""

from radixlang.workers.workers import Workers

__all__ = ["Workers"]
