"""Ends a job of which a rank has ended: no rank hangs, and one message names the rank and the cause.

Every wait of the control plane raises once a rank is lost. Other waits (a collective, a user's loop) may not, so a thread
of this module ends the process after a grace period. A rank that ends says why as well as it can: in `leave`, in the hook for
uncaught exceptions, or at the exit of Python, before MPI's own finalisation, which would wait for all ranks.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

from autotune.runtime.control.network import FAILED, LEFT, REPORTED, RETURNED, Network
from autotune.runtime.errors import PeerLostError

GRACE_S = 2.0
"""How long a rank may take to come out by itself after another one is lost."""
_OTHERS_S = 1.0
"""How much later ranks that print nothing end the job, should the one that prints not have done so."""
_PRINT_S = 0.3
"""How long the rank that failed has to print why, before another one ends the job."""
_POLL_S = 0.1
_LEAVE_S = 5.0
_WAITING_IN = ("/autotune/runtime/", "/autotune/jobs/", "/torch/autograd/", "/torch/distributed/", "/torch/_tensor.py")
"""A main thread whose frames are in these files waits for other ranks, or is about to."""


class RankWatcher:
    """Watches over the ranks of a job, from its opening until this rank leaves.

    Threads: the main thread calls everything but `_start`, which the network's thread calls, and `_run`, a thread of its own.
    `_announcing` guards that the message is printed once.
    """

    def __init__(self, network: Network, abort: Callable[[int], NoReturn]) -> None:
        """`abort`: ends all processes of the job."""
        self._network, self._abort = network, abort
        self._on_loss: list[Callable[[], None]] = []
        self._announcing = threading.Lock()
        self._has_announced = self._has_started = self._is_uncaught = False
        if network.size > 1:
            network.on_loss(self._start)
            atexit.register(self._at_exit)
            self._usual_hook, sys.excepthook = sys.excepthook, self._at_exception

    def call_on_loss(self, call: Callable[[], None]) -> None:
        """Have `call` called, in the watcher's thread, when a rank is lost: to abort what waits for it."""
        self._on_loss.append(call)

    def check(self, waited_s: float) -> None:
        """For waits of the control plane: raise PeerLostError if what is waited for cannot come."""
        if self._network.losses or (self._network.returned and waited_s > GRACE_S):
            raise PeerLostError(self._network.why_first)
        if self._network.left and waited_s > GRACE_S:
            raise PeerLostError(f"{next(iter(self._network.left.values()))} while this rank waits for it")

    def leave(self, error: BaseException | None = None) -> None:
        """The job has ended on this rank; what happens to other ranks from here on is their business."""
        if error is not None:
            self.fail(error)
        self._network.leave(_LEAVE_S if error is None else 0.0)
        self._restore()

    def leaving(self) -> None:
        """This rank begins to leave: nothing that another one waits for will come from it."""
        self._network.farewell(LEFT, f"rank {self._network.rank} has ended its part of the job")

    def fail(self, error: BaseException) -> None:
        """This rank has failed and is about to leave: tell the others at once, unless it fails because of one of them."""
        if isinstance(error, PeerLostError) and self._network.losses:
            return
        self._network.farewell(FAILED, f"rank {self._network.rank}{described(error)}")

    def end(self) -> NoReturn:
        """End the job because of a lost rank; one rank prints why."""
        if not self._announce():
            time.sleep(GRACE_S + _OTHERS_S)
            self._announce(late=True)
        elif not self._network.killed:
            time.sleep(_PRINT_S)
        self._abort(1)

    def interrupted(self) -> None:
        """A signal ends this process, and the launcher sends it to the others too."""
        self._network.farewell(REPORTED, f"rank {self._network.rank} was interrupted")

    @property
    def has_lost(self) -> bool:
        return bool(self._network.losses)

    # -- the watcher's thread ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._network.has_left:
            return
        killed = self._network.killed
        if killed:  # the launcher may end this process at any moment
            self._announce()
        if not self._has_started:
            self._has_started = True
            threading.Thread(target=self._run, name="autotune-watcher", daemon=True).start()

    def _run(self) -> None:
        for call in self._on_loss:
            call()
        since_s = time.monotonic()
        while not self._network.has_left:
            if not (self._network.losses or _is_waiting(_main_frame())):
                since_s = (
                    time.monotonic()
                )  # a rank has returned in order, and this one does something that needs no other
            late_s = GRACE_S if self._is_first() else GRACE_S + _OTHERS_S
            if time.monotonic() - since_s > late_s:
                self._announce(late=True)
                self._abort(1)
            time.sleep(_POLL_S)

    def _is_first(self) -> bool:
        """Whether this is the rank that prints: the lowest but the first one that was lost. All ranks find the same."""
        return self._network.rank == (1 if self._network.first_ended == 0 else 0)

    def _announce(self, *, late: bool = False) -> bool:
        """Print which rank is lost, on one rank, once; whether this is that rank. `late`: on any, since that one has not."""
        if not (late or self._is_first()):
            return False
        with self._announcing:
            if not self._has_announced and not self._network.has_reported:
                self._has_announced = True
                sys.stderr.write(f"autotune: error: {self._network.why_first}\n")
                sys.stderr.flush()
        return True

    # -- how this process ends -----------------------------------------------------------------------------------------------

    def _at_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, PeerLostError) and self._network.losses:
            self._is_uncaught = True
            self._announce()
            return
        self.fail(error)
        self._usual_hook(kind, error, trace)

    def _at_exit(self) -> None:
        rank = self._network.rank
        has_failed = self._is_uncaught or not self._network.has_left
        if self._network.killed or (self._network.losses and has_failed):
            self.end()  # MPI's own finalisation would wait for ranks that do not come, some of them for ever
        if self._network.has_left:
            self._network.farewell(LEFT, f"rank {rank} has ended its part of the job")
        else:
            self._network.farewell(RETURNED, f"rank {rank} has returned before the job's end")

    def _restore(self) -> None:
        if self._network.size > 1 and sys.excepthook == self._at_exception and not self._network.losses:
            sys.excepthook = self._usual_hook


def described(error: BaseException) -> str:
    """How a rank ended, as a message to others says it, behind the name of the rank."""
    if isinstance(error, SystemExit):
        return f" has ended by sys.exit({'' if error.code is None else error.code})"
    return f": {type(error).__name__}: {error}"


def _main_frame() -> FrameType | None:
    main: Any = threading.main_thread()
    return sys._current_frames().get(main.ident)  # noqa: SLF001 - the standard library has no other way


def _is_waiting(frame: FrameType | None) -> bool:
    """Whether a thread is inside a call of ours, or of torch's backward pass or collectives."""
    while frame is not None:
        if any(part in frame.f_code.co_filename for part in _WAITING_IN):
            return True
        frame = frame.f_back
    return False
