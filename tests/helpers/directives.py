"""What PBS, LSF and Flux allow in a batch script, of what jobs/ uses: enough to refuse the rest.

Written from the manuals: qsub(1B) of PBS, bsub of LSF 10.1, flux-batch(1) and flux-run(1).
"""

import re
import shlex

_CHUNK = r"(\d+:)?(\w+=[^:+=]+)(:\w+=[^:+=]+)*"
_GPU_ITEM = "|".join(
    [
        r"num=\d+(/(task|host))?",
        "mode=(shared|exclusive_process)",
        "j_exclusive=(yes|no)",
        "mps=(yes|no|per_socket|per_gpu)(,shared)?(,nocvd)?",
        "aff=(yes|no)",
        r"gmodel=[\w.-]+",
        r"gmem=\d+[MGT]?",
    ]
)
# The form of each option's value; None where it takes none.
PBS = {
    "-N": r"[A-Za-z][\w+.-]{0,229}",
    "-j": r"oe|eo|n",
    "-l": rf"select={_CHUNK}(\+{_CHUNK})*|walltime=(\d+|\d+:\d\d(:\d\d)?)",
    "-q": r"[\w@.-]+",
}
LSF = {
    "-J": r"[^\s/]+",
    "-n": r"\d+(,\d+)?",
    "-R": r"span\[(ptile=\d+|hosts=-?1)\]",
    "-gpu": rf"-|({_GPU_ITEM})(:({_GPU_ITEM}))*",
    "-W": r"(\d+:)?\d+",
    "-q": r"[\w.-]+",
}
FLUX_BATCH = {
    "--job-name": r"\S+",
    "--nodes": r"\d+",
    "--nslots": r"\d+",
    "--time-limit": r"\d+(\.\d+)?(ms|s|m|h|d)?",
    "--exclusive": None,
    "--queue": r"[\w.-]+",
    "--gpus-per-slot": r"\d+",
}
FLUX_RUN = {
    **dict.fromkeys(("--nodes", "--ntasks", "--gpus-per-task", "--cores-per-task"), r"\d+"),
    **dict.fromkeys(("--tasks-per-node", "--gpus-per-node", "--cores"), r"\d+"),
}
_PER_TASK = {"--ntasks", "--gpus-per-task", "--cores-per-task"}
_PER_RESOURCE = {"--tasks-per-node", "--gpus-per-node", "--cores"}
# PBS's resources of a chunk.
CHUNK_RESOURCES = {"ncpus", "mpiprocs", "ompthreads", "ngpus", "mem", "host", "arch", "vnode"}
MARKS = {"pbs": "#PBS ", "lsf": "#BSUB ", "flux": "#flux: "}
GRAMMARS = {"pbs": PBS, "lsf": LSF, "flux": FLUX_BATCH}


def directives(scheduler, text):
    """Return (option, value) of each directive; those after the first command are none to it."""
    found = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith(MARKS[scheduler]):
            found.append(_option(shlex.split(line.removeprefix(MARKS[scheduler]))))
    return found


def _option(words):
    name, equals, value = words[0].partition("=")
    if name.startswith("--"):
        assert len(words) == 1, f"{words}: a long option and its value are one word here"
        return name, value if equals else None
    assert len(words) == 2, f"{words}: an option and its value"
    return words[0], words[1]


def check(grammar, options):
    """Raise AssertionError where an option is unknown, or its value of another form."""
    for name, value in options:
        assert name in grammar, f"{name}: no such option"
        form = grammar[name]
        if form is None:
            assert value is None, f"{name} takes no value, and has {value!r}"
        else:
            assert re.fullmatch(form, value or ""), f"{name} {value!r}: must match {form}"


def check_script(scheduler, text):
    """Raise AssertionError where the scheduler would refuse the script's directives."""
    marked = sum(line.startswith(MARKS[scheduler].rstrip()) for line in text.splitlines())
    options = directives(scheduler, text)
    assert len(options) == marked > 0, "directives after the first command are not read"
    check(GRAMMARS[scheduler], options)
    for name, value in options:
        if scheduler == "pbs" and name == "-l" and value.startswith("select="):
            for resource in re.findall(r"(\w+)=", value.removeprefix("select=")):
                assert resource in CHUNK_RESOURCES, f"select: {resource} is no resource"
    if scheduler == "flux":
        check_flux_run(next(line for line in text.splitlines() if line.startswith("flux run ")))


def check_flux_run(line):
    """Raise AssertionError where ``flux run`` would refuse its options."""
    words = line.split()[2:]
    options = [_option([word]) for word in words[: words.index("python")]]
    check(FLUX_RUN, options)
    names = {name for name, _ in options}
    assert not (names & _PER_TASK and names & _PER_RESOURCE), (
        f"{sorted(names)}: options by task and by resource exclude each other"
    )


def ranks_and_gpus(scheduler, text):
    """Return how many ranks a script starts, and how many GPUs it asks for."""
    options = dict(directives(scheduler, text))
    if scheduler == "pbs":
        select = re.search(r"select=(\d+):(\S*)", text)
        each = dict(item.split("=") for item in select[2].split(":"))
        ranks = int(re.search(r"ranks=\$\{ranks:-(\d+)\}", text)[1])
        assert ranks == int(select[1]) * int(each["mpiprocs"]), "ranks and mpiprocs differ"
        return ranks, int(select[1]) * int(each["ngpus"])
    if scheduler == "lsf":
        nodes = int(options["-n"]) // int(re.search(r"ptile=(\d+)", options["-R"])[1])
        return int(options["-n"]), nodes * int(re.search(r"num=(\d+)", options["-gpu"])[1])
    line = next(line for line in text.splitlines() if line.startswith("flux run "))
    given = dict(word.split("=") for word in line.split() if word.startswith("--"))
    assert given["--nodes"] == options["--nodes"], "the job has other nodes than flux run takes"
    return int(given["--ntasks"]), int(given["--ntasks"]) * int(given["--gpus-per-task"])
