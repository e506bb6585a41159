"""Run: python -m pynccl COMMAND"""

import sys

from pynccl.cli import main

sys.exit(main())
