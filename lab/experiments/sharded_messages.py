"""Record every message that a Hamburger sends when the positions of a map are in several processes.

    python lab/experiments/sharded_messages.py --json results/sharded_messages_cpu.jsonl

Protocol
- `hb.shard_positions` on gloo processes of one CPU, in training, with the default one-step gradient. A forward and a
  backward pass; gradients of parameters are not added, which is up to data parallelism.
- `d`, `r` and `steps` are those of Table 3. The numbers of processes and of positions differ, to show that messages
  depend on neither.
- A message is the tensor that a process passes to `all_reduce` or `broadcast`, in bytes; the two all-reduces of batch
  norm are included.
- The page's times come from `hamburger_lab.pages.sharded`, which states what it assumes about the network.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

import hamburger as hb
from hamburger.environment import describe_environment
from hamburger.files import write_json_lines

HAMS = ("nmf", "vq", "cd")


def record_messages(ham: str, positions: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the messages of this process in a forward and a backward pass, as pairs of kind and bytes."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    layer = hb.shard_positions(hb.Hamburger(args.channels, ham=ham, rank=args.rank, steps=args.steps), mesh)
    messages: list[tuple[str, int]] = []
    originals = {name: getattr(dist, name) for name in ("all_reduce", "broadcast")}

    def recorder(name: str) -> Any:
        def call(tensor: torch.Tensor, *options: Any, **named: Any) -> Any:
            messages.append((name, tensor.numel() * tensor.element_size()))
            return originals[name](tensor, *options, **named)

        return call

    for name in originals:
        setattr(dist, name, recorder(name))
    out = layer(torch.randn(1, args.channels, positions + dist.get_rank()))  # processes differ by a few positions
    forward = list(messages)
    out.square().sum().backward()
    for name, original in originals.items():
        setattr(dist, name, original)
    return {"forward": forward, "backward": messages[len(forward) :]}


def worker(rank: int, world: int, folder: str, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    rows = []
    for ham, positions in itertools.product(HAMS, args.positions):
        sizes = {"ham": ham, "processes": world, "positions": positions, "b": 1, "d": args.channels, "r": args.rank}
        sizes |= {"steps": args.steps, "grad": "one-step"}
        rows.append(sizes | record_messages(ham, positions, args) | describe_environment("cpu"))
    if rank == 0:
        Path(folder, "rows.json").write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def read_counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="write the rows to this file")
    parser.add_argument("--processes", type=read_counts, default=[2, 4], help="comma-separated, such as 2,4")
    parser.add_argument("--positions", type=read_counts, default=[64, 256], help="of a process, comma-separated")
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args(argv)
    rows = []
    for world in args.processes:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(worker, (world, folder, args), nprocs=world)
            rows += json.loads(Path(folder, "rows.json").read_text())
    write_json_lines(args.json, rows)


if __name__ == "__main__":
    main()
