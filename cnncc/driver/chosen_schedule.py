"""What the compiler chooses for a network, as a schedule file."""

from __future__ import annotations

from pathlib import Path

from cnncc.driver.pipeline import AUTO, NONE, Compilation
from cnncc.errors import Refusal, one_line
from cnncc.passes._scheduling.core_chain import CoreChain
from cnncc.passes._scheduling.decision import Decision
from cnncc.passes._scheduling.schedule_file import read_schedule
from cnncc.passes._scheduling.schedule_text import schedule_text


class ChosenSchedule:
    """Notes what a compilation decides, at once: later passes change the layers. source: the model, or a dump."""

    def __init__(self, compilation: Compilation, source: Path) -> None:
        self.title = one_line(f"{source.name} on {compilation.settings.arch.name}", 110)
        self.source, self.schedule, self.groups = source, "", compilation.settings.groups
        compilation.ctx.decided = self._note

    def _note(self, decision: Decision | CoreChain) -> None:
        given = () if self.groups in (AUTO, NONE) else read_schedule(self.groups).groups
        self.schedule = f"# {self.title}\n\n{schedule_text(decision, given)}"

    def text(self) -> str:
        """The schedule file (docs/schedule.md). Raises Refusal where nothing was decided."""
        if not self.schedule:
            raise Refusal(f"{self.source}: its layers are mapped already: give the model, or a dump of an earlier step")
        return self.schedule
