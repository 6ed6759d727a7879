"""Runs the workload's training function with Ray Train, started with torchrun's flags."""

import argparse
import os
from pathlib import Path

import ray
import torch.distributed as dist
import workload
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("--max-restarts", type=int, required=True)
    parser.add_argument("--health-check-interval", default="2", metavar="S")
    parser.add_argument("--health-check-timeout", default="600", metavar="S")
    parser.add_argument("script", help="accepted: it is imported, not run")
    parser.add_argument("folder", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args()


def train(settings: dict[str, list[str]]) -> None:
    """Runs in every worker; Ray has made the process group."""
    workload.train(workload.parse_args(settings["arguments"]), dist.get_rank())


def main() -> None:
    args = parse_args()
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = args.health_check_interval
    os.environ["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] = args.health_check_timeout
    # More CPUs than there may be: the workers share them, as under any launcher.
    ray.init(num_cpus=args.nproc_per_node + 2, include_dashboard=False, _temp_dir=str(args.folder / "ray"))
    trainer = TorchTrainer(
        train,
        train_loop_config={"arguments": [str(args.folder), *args.arguments]},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=args.nproc_per_node),
        run_config=RunConfig(
            storage_path=str(args.folder / "results"), failure_config=FailureConfig(max_failures=args.max_restarts)
        ),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
