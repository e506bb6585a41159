"""Python programs in processes of their own."""

import os
import subprocess
import sys


def python(program, *arguments, check=True, timeout=60, **environment):
    """Run Python source; a value of None takes a variable out of the environment.

    Returns the CompletedProcess, with output as text.
    """
    env = {**os.environ, **{k: v for k, v in environment.items() if v is not None}}
    for name, value in environment.items():
        if value is None:
            env.pop(name, None)
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=env,
        capture_output=True,
        text=True,
        check=check,
        timeout=timeout,
    )
