"""`python -m holdfast.sim SEED...`: tell the story of each seed, or of the first invariant it breaks."""

from __future__ import annotations

import sys

from holdfast.sim.cluster import simulate


def main() -> int:
    if not sys.argv[1:] or not all(seed.isdecimal() for seed in sys.argv[1:]):
        sys.stderr.write("usage: python -m holdfast.sim SEED...\n")
        return 2
    for seed in sys.argv[1:]:
        result = simulate(int(seed))
        sys.stdout.write("\n".join(result.lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
