"""dlrover-run, for a torch whose SubprocessHandler takes one argument more than DLRover 0.6.1 gives."""

import sys
from functools import partial

from dlrover.trainer.torch import elastic_run

if __name__ == "__main__":
    elastic_run.SubprocessHandler = partial(elastic_run.SubprocessHandler, numa_options=None)
    sys.exit(elastic_run.main())
