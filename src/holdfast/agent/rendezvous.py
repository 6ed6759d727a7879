"""A node's place in a world, in the lines that people who come from torchrun and its kin look for in its log."""

from __future__ import annotations

from holdfast.core.ids import Placement, World


class Rendezvous:
    """Told when it is another place than before; a job of one node has nobody to meet."""

    def __init__(self, *, single: bool) -> None:
        self._single = single
        self._told = ""

    def text(self, world: World, placement: Placement) -> str | None:
        local_ranks = list(range(placement.num_workers))
        ranks = [placement.first_rank + local_rank for local_rank in local_ranks]
        sizes = [world.size] * placement.num_workers
        fields = {
            "restart_count": world.restart_count,
            "master_addr": world.store.host,
            "master_port": world.store.port,
            "group_rank": placement.group_rank,
            "group_world_size": len(world.placements),
            "local_ranks": local_ranks,
            "role_ranks": ranks,
            "global_ranks": ranks,
            "role_world_sizes": sizes,
            "global_world_sizes": sizes,
        }
        lines = [f"  {name}={value}" for name, value in fields.items()]
        text = "\n".join(["Rendezvous complete for workers. Result:", *lines])
        if self._single or text == self._told:
            return None
        self._told = text
        return text
