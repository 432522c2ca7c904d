"""Lines that are drawn anew and also visible under mpirun, which forwards whole lines only and would hold back the last one."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import Progress
from rich.text import Text


def whole_lines(shown: RenderableType) -> Group:
    """The same with a line end behind it, whatever else is written to the terminal after that."""
    return Group(shown, Text())


def live_lines(console: Console) -> Live:
    """Drawn by `show` and never by a timer; removed when stopped."""
    return Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)


def show(live: Live, shown: RenderableType) -> None:
    live.update(whole_lines(shown), refresh=True)


class LiveBar(Progress):
    """A bar of progress."""

    def get_renderable(self) -> RenderableType:
        return whole_lines(super().get_renderable())
