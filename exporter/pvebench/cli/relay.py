"""Who hears of a finished run and of new settings."""

from __future__ import annotations

from pvebench.cli.crew import Crew
from pvebench.cli.planned import planned_cases
from pvebench.cli.progress import ProgressLines
from pvebench.cli.reload import Configuration
from pvebench.judging import Keeper
from pvebench.metrics import Page
from pvebench.model.run import Run
from pvebench.model.status import Phase
from pvebench.model.workload import Case
from pvebench.web import Board


class Relay:
    """Tells progress, page, crew, board and judging; the workers know only this one.

    The workers are made before what listens to them, so `connect` comes later.
    """

    def __init__(self) -> None:
        self._parts: tuple[ProgressLines, Page, Crew, Board, Keeper] | None = None

    def connect(
        self, progress: ProgressLines, page: Page, crew: Crew, board: Board, keeper: Keeper
    ) -> None:
        """Name the listeners."""
        self._parts = progress, page, crew, board, keeper

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        """Tell that a case is in a phase that takes so many seconds."""
        if self._parts is not None:
            self._parts[0].phase(case, phase, seconds)

    def finished(self, run: Run) -> None:
        """Tell that a run ended and is stored."""
        if self._parts is not None:
            progress, page, _, _, keeper = self._parts
            progress.finished(run)
            page.refresh(run.case.key)
            keeper.nudge()

    def reload(self, configuration: Configuration) -> None:
        """Tell that other settings and packs are in force."""
        if self._parts is not None:
            _, page, crew, board, _ = self._parts
            crew.assign(configuration.given)
            board.plan(planned_cases(configuration.given))
            page.refresh()
