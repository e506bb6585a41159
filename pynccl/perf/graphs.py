"""CUDA graphs of what is issued on the streams of a process's GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pynccl.perf.gpu import Gpu
from pynccl.streams import check_driver

__all__ = ["Graphs"]


class Graphs:
    """A graph for each GPU."""

    def __init__(self, gpus: list[Gpu]) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._gpus = gpus
        self._made: list[tuple[Any, Any]] = []

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Capture what is issued inside, in place of running it."""
        driver = self._driver
        # NCCL may allocate on its first call, which a capture of the whole process would forbid.
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        for gpu in self._gpus:
            gpu.device.set_current()
            check_driver(driver.cuStreamBeginCapture(gpu.stream, mode), "cuStreamBeginCapture")
        try:
            yield
        except BaseException:
            for gpu in self._gpus:
                driver.cuStreamEndCapture(gpu.stream)
            raise
        for gpu in self._gpus:
            gpu.device.set_current()
            graph = check_driver(driver.cuStreamEndCapture(gpu.stream), "cuStreamEndCapture")
            ready = check_driver(driver.cuGraphInstantiate(graph, 0), "cuGraphInstantiate")
            self._made.append((graph, ready))

    def launch(self) -> None:
        """Launch each GPU's graph on its stream."""
        for gpu, (_, ready) in zip(self._gpus, self._made):
            gpu.device.set_current()
            check_driver(self._driver.cuGraphLaunch(ready, gpu.stream), "cuGraphLaunch")

    def close(self) -> None:
        """Destroy the graphs, when they have run."""
        for graph, ready in self._made:
            self._driver.cuGraphExecDestroy(ready)
            self._driver.cuGraphDestroy(graph)
        self._made = []
