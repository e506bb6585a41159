"""Makes pytest usable under mpirun: one report, and no rank that waits for one that failed."""

import sys
import time

import pytest

# How long the other ranks have to report failures of their own before the job is ended.
GRACE_SECONDS = 2.0


class RankReporter:
    """A pytest plugin: rank 0 reports as usual, the others only failures, and these end the job.

    Without it, a rank whose test failed would go on to the next collective while the others are
    still in the last.
    """

    def __init__(self, world):
        self.world = world

    def silence(self, config):
        """Leave progress and totals to rank 0."""
        if self.world.rank > 0:
            config.pluginmanager.unregister(name="terminalreporter")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.end_job(f"{report.nodeid} failed in its {report.when}\n{report.longreprtext}")

    @pytest.hookimpl(trylast=True)
    def pytest_collectreport(self, report):
        if report.failed:
            self.end_job(f"{report.nodeid} could not be collected\n{report.longreprtext}")

    def end_job(self, text):
        if self.world.size == 1:
            return
        prefix = f"[rank {self.world.rank} of {self.world.size}] "
        print("\n" + "\n".join(prefix + line for line in text.splitlines()), file=sys.stderr)
        sys.stderr.flush()
        time.sleep(GRACE_SECONDS)
        self.world.Abort(1)


def outcomes(world, function):
    """Call the function on every rank; return what each rank raised, or None, as (type, text).

    Collective, so that an assertion on the result holds or fails on all ranks alike.
    """
    try:
        function()
        mine = None
    except Exception as error:  # noqa: BLE001 - whatever it raised is the outcome
        mine = (type(error).__name__, str(error))
    return world.allgather(mine)
