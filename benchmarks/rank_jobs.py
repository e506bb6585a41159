"""Several MPI jobs at once, of which only the one that is asked runs: the others' ranks sleep.

Each rank of a job connects to a socket of its own job, says which rank it is, and answers a line
of JSON for each that it is sent (``serve``). A rank that waits for its next line takes no time of
any core, which one that waits in MPI would.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile

# Seconds for all ranks to connect, and for a rank to answer.
START_LIMIT, ANSWER_LIMIT = 120, 300
# More ranks than cores, as root or not, and no second of waiting at start-up.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_btl": "^ofi",
}


class Job:
    """Ranks of one program, by the mpirun beside a Python, that answer what they are asked."""

    def __init__(self, name, nranks, python, program, environment):
        self.name, self.channels = name, []
        self._folder = tempfile.TemporaryDirectory(prefix="benchmark-")
        address = os.path.join(self._folder.name, "socket")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(address)
            server.listen(nranks)
            self._process = subprocess.Popen(
                [mpirun(python), "-n", str(nranks), python, "-m", "mpi4py", *program, address],
                env={**OPEN_MPI, **os.environ, **environment},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                self.channels = connected(server, nranks, self._process)
            except BaseException:
                self.close()
                raise

    def ask(self, request):
        """Every rank's answer, in the order of ranks."""
        try:
            for channel in self.channels:
                channel.write(json.dumps(request) + "\n")
                channel.flush()
            return [json.loads(channel.readline()) for channel in self.channels]
        except (OSError, ValueError) as error:
            raise SystemExit(f"{self.name}: no answer to {request} from a rank: {error}") from error

    def close(self):
        """Let the ranks end; end them where they do not."""
        for channel in self.channels:
            with contextlib.suppress(OSError):  # a rank that is gone leaves lines unsent
                channel.close()
        try:
            self._process.wait(START_LIMIT if self.channels else 0)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._folder.cleanup()


def connected(server, nranks, process):
    """A file to read and write for each rank."""
    channels = [None] * nranks
    server.settimeout(1)
    seconds = 0
    while None in channels:
        try:
            connection, _ = server.accept()
        except TimeoutError:
            seconds += 1
            if process.poll() is not None or seconds > START_LIMIT:
                here = nranks - channels.count(None)
                raise SystemExit(
                    f"{here} of {nranks} ranks came up: {' '.join(process.args)}"
                ) from None
            continue
        connection.settimeout(ANSWER_LIMIT)
        with connection:  # the file keeps it open
            channel = connection.makefile("rw", encoding="utf-8")
        channels[json.loads(channel.readline())] = channel
    return channels


def serve(address, rank, answer):
    """On a rank: give ``answer(request)`` to every request until the other side closes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rw", encoding="utf-8") as channel:
            print(json.dumps(rank), file=channel, flush=True)
            for line in channel:
                print(json.dumps(answer(json.loads(line))), file=channel, flush=True)


def mpirun(python):
    """The launcher of this Python's environment, else the one on PATH."""
    beside = pathlib.Path(python).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise SystemExit(f"no mpirun beside {python}, and none on PATH")
    return found
