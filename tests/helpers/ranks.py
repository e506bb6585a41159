"""Makes pytest usable under mpirun: one report, and no rank that waits for one that failed."""

import os
import sys
import threading
import time
import traceback

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
        self.timer = threading.Timer(0, lambda: None)

    def silence(self, config):
        """Leave progress and totals to rank 0."""
        if self.world.rank > 0:
            nowhere = open(os.devnull, "w")  # noqa: SIM115 - as long as the process
            config.pluginmanager.unregister(name="terminalreporter")
            config.pluginmanager.register(
                pytest.TerminalReporter(config, nowhere), "terminalreporter"
            )

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.end_job(f"{report.nodeid} failed in its {report.when}\n{report.longreprtext}")

    @pytest.hookimpl(trylast=True)
    def pytest_collectreport(self, report):
        if report.failed:
            self.end_job(f"{report.nodeid} could not be collected\n{report.longreprtext}")

    @pytest.hookimpl(trylast=True)
    def pytest_internalerror(self, excrepr):
        self.end_job(f"pytest failed\n{excrepr}")

    # pytest-timeout asks whether another plugin does its work.

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item, settings):
        arguments = (item, settings.timeout)
        self.timer = threading.Timer(settings.timeout, self.end_hanging_job, arguments)
        self.timer.daemon = True
        self.timer.start()
        return True

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self, item):
        self.timer.cancel()
        return True

    def end_hanging_job(self, item, seconds):
        item.config.pluginmanager.getplugin("capturemanager").suspend_global_capture(in_=True)
        frame = sys._current_frames()[threading.main_thread().ident]
        place = "".join(traceback.format_stack(frame, limit=12))
        self.tell(f"{item.nodeid} has not ended after {seconds:g} s. It is at\n{place}")
        os._exit(1)

    def end_job(self, text):
        if self.world.size > 1:
            self.tell(text)
            self.world.Abort(1)

    def tell(self, text):
        prefix = f"[rank {self.world.rank} of {self.world.size}] "
        print("\n" + "\n".join(prefix + line for line in text.splitlines()), file=sys.stderr)
        sys.stderr.flush()
        time.sleep(GRACE_SECONDS)


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
