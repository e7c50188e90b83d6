"""The console script ``tree-grpo``.

A user's mistake (ValueError, FileNotFoundError) ends as one line on standard error and exit code
2; everything else is a fault of the program and keeps its traceback. Sub-commands import what they
need only when they run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, cast

from search_r1.record import Record, read_forests
from search_r1.types import Rewards

USER_ERROR = 2
OUR_PACKAGES = ("search_r1", "retrieval_server", "verl_tree_grpo")


class Forwarded(NamedTuple):
    """A sub-command that another package parses and runs, since it has dependencies of its own."""

    module: str
    extras: tuple[str, ...]
    help: str


FORWARDED: dict[str, Forwarded] = {
    "train": Forwarded(
        "verl_tree_grpo.main", ("gpu", "cpu"), "train a policy: key=value overrides follow"
    ),
    "index": Forwarded("retrieval_server.cli", ("serve",), "build a retrieval index"),
    "serve": Forwarded("retrieval_server.cli", ("serve",), "run the retrieval server"),
}


class MissingDependency(Exception):
    """A sub-command needs a package of an extra that is not installed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return the exit code. ``argv`` is without the program name."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[0] if arguments else None
    mistakes: tuple[type[Exception], ...] = (MissingDependency, ValueError, FileNotFoundError)
    if command == "train":
        mistakes = (MissingDependency,)  # a ValueError out of a training run keeps its traceback
    try:
        if command == "train":
            return forward_train(arguments[1:])
        if command in FORWARDED:
            return forward_to_server(command, arguments)
        args = build_parser().parse_args(arguments)
        return args.run(args)
    except mistakes as error:
        print(f"tree-grpo: {error}", file=sys.stderr)
        return USER_ERROR


def forward_train(overrides: list[str]) -> int:
    """Hand the rest of the command line to the trainer."""
    forwarded = FORWARDED["train"]
    with requires("train", *forwarded.extras):
        module = importlib.import_module(forwarded.module)
    return module.main(overrides) or 0


def forward_to_server(command: str, arguments: list[str]) -> int:
    """Let the retrieval server's package parse and run ``index`` or ``serve``."""
    forwarded = FORWARDED[command]
    with requires(command, *forwarded.extras):
        module = importlib.import_module(forwarded.module)
        parser = argparse.ArgumentParser(prog="tree-grpo")
        getattr(module, f"add_{command}_parser")(parser.add_subparsers(required=True))
        return getattr(module, f"run_{command}")(parser.parse_args(arguments)) or 0


@contextmanager
def requires(command: str, *extras: str) -> Generator[None]:
    """Name the extra to install where ``command`` misses a package; our own faults pass through."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in OUR_PACKAGES and importlib.util.find_spec(package) is not None:
            raise
        choices = " or ".join(f"'tree-grpo[{extra}]'" for extra in extras)
        raise MissingDependency(
            f"{command} needs the package {package!r}, which is not installed; "
            f"run: pip install {choices}"
        ) from error


def build_parser() -> argparse.ArgumentParser:
    """The parser of the sub-commands that live here; the forwarded ones appear in its help only."""
    parser = argparse.ArgumentParser(
        prog="tree-grpo", description="Tree-search reinforcement learning for LLM search agents."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, forwarded in FORWARDED.items():
        commands.add_parser(name, help=forwarded.help, add_help=False)

    credit = commands.add_parser("credit", help="advantages of leaf rewards")
    credit.add_argument("--estimator", default="tree", help="estimator (default: tree)")
    credit.add_argument(
        "rewards",
        help="JSON list of trees, each a list of leaf rewards, null for a failed leaf: "
        "'[[1,0.2,0.2],[0.2,0.2,null]]'",
    )
    credit.set_defaults(run=run_credit)

    view = commands.add_parser("view", help="draw a recorded forest")
    view.add_argument("file", help="JSONL file of forests")
    which = view.add_mutually_exclusive_group()
    which.add_argument("--index", type=int, default=0, help="line to draw, negative from the end")
    which.add_argument("--uid", help="draw every forest of this prompt uid")
    view.add_argument("--estimator", default="tree", help="advantages to show (default: tree)")
    view.set_defaults(run=run_view)

    plot = commands.add_parser("plot", help="learning curve of a run as a PNG")
    plot.add_argument("file", help="metrics JSONL file")
    plot.add_argument("--out", required=True, help="PNG file to write")
    plot.set_defaults(run=run_plot)

    data = commands.add_parser("data", help="build data sets")
    _add_data_commands(data)

    doctor = commands.add_parser("doctor", help="check the installation")
    doctor.add_argument("--retriever", help="also check that this address accepts connections")
    doctor.set_defaults(run=run_doctor)
    return parser


def _add_data_commands(data: argparse.ArgumentParser) -> None:
    build = data.add_subparsers(required=True, metavar="ACTION").add_parser(
        "build", help="write a data set"
    )
    geohop = build.add_subparsers(required=True, metavar="DATASET").add_parser(
        "geohop",
        help="synthetic multi-hop questions about cities, with their corpus",
        argument_default=argparse.SUPPRESS,  # what is not given keeps the builder's default
    )
    geohop.add_argument("out_dir", help="folder to write")
    for name in ("--num-cities", "--num-train", "--num-test", "--seed"):
        geohop.add_argument(name, type=int)
    geohop.add_argument("--template", help="prompt template")
    geohop.set_defaults(run=run_geohop)


def run_credit(args: argparse.Namespace) -> int:
    """Print the advantages of the given rewards, in the same shape."""
    from search_r1.credit import estimate

    print(json.dumps(estimate(args.estimator, parse_rewards(args.rewards))))
    return 0


def parse_rewards(text: str) -> Rewards:
    """Leaf rewards from JSON; ValueError for anything but a list of lists of numbers and nulls."""
    try:
        trees = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the rewards are not JSON ({error}): got {text!r}") from error
    expected = "expected a list of trees, each a list of numbers or null: [[1, 0.2], [0.2, null]]"
    if not isinstance(trees, list):
        raise ValueError(f"got {trees!r}, {expected}")
    for tree in cast("list[Any]", trees):
        if not isinstance(tree, list):
            raise ValueError(f"got the tree {tree!r}, {expected}")
        for reward in cast("list[Any]", tree):
            number = isinstance(reward, int | float) and not isinstance(reward, bool)
            if reward is not None and not (number and math.isfinite(reward)):
                raise ValueError(f"got the reward {reward!r}, {expected}")
    return cast("list[list[float | None]]", trees)


def run_view(args: argparse.Namespace) -> int:
    """Draw one forest by its position, or all forests of a prompt."""
    from search_r1.view.terminal import draw

    records = read_forests(args.file, skip_torn=True)
    if args.uid is not None:
        chosen = [record for record in records if record.forest.query.uid == args.uid]
        if not chosen:
            raise ValueError(f"{args.file} holds no forest with the uid {args.uid!r}")
    else:
        chosen = [_pick(records, args.index, args.file)]
    for record in chosen:
        if record.step is not None:
            print(f"step {record.step}")
        draw(record.forest, estimator=args.estimator)
    return 0


def _pick(records: Iterator[Record], index: int, path: str) -> Record:
    # reads no further than it must: recordings of long runs are large
    head = list(records) if index < 0 else list(islice(records, index + 1))
    if not -len(head) <= index < len(head):
        raise ValueError(f"{path} holds {len(head)} forests, there is no number {index}")
    return head[index]


def run_plot(args: argparse.Namespace) -> int:
    """Write the learning curve of a metrics file."""
    with requires("plot", "plots"):
        importlib.import_module("search_r1.view.plots").learning_curve(args.file, args.out)
    return 0


def run_geohop(args: argparse.Namespace) -> int:
    """Build the synthetic geohop data set and print what was written."""
    options = {k: v for k, v in vars(args).items() if k not in ("command", "run")}
    with requires("data build geohop", "data"):
        geohop = importlib.import_module("search_r1.data.geohop")
        print(json.dumps(geohop.build(options.pop("out_dir"), **options)))
    return 0


def run_doctor(args: argparse.Namespace) -> int:
    """Print one line a check; 1 where a hard check fails."""
    from search_r1.doctor import examine

    failed = False
    for check in examine(args.retriever):
        print(check, flush=True)
        failed |= check.ok is False
    return int(failed)
