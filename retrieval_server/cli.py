"""``tree-grpo index`` and ``tree-grpo serve``; the flags of Search-R1's scripts are aliases."""

from __future__ import annotations

import argparse
import errno
import logging
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrieval_server.app import State
    from retrieval_server.protocols import Backend


def add_index_parser(commands: Any) -> argparse.ArgumentParser:
    """Add ``index`` to sub-commands."""
    parser = commands.add_parser("index", help="build a retrieval index")
    parser.add_argument(
        "--corpus", "--corpus_path", type=Path, required=True, help="JSONL, may be gzipped"
    )
    parser.add_argument("--out", "--save_dir", type=Path, required=True, help="directory to write")
    parser.add_argument("--backend", choices=("faiss", "bm25"), default="faiss")
    parser.add_argument("--overwrite", action="store_true", help="replace the index in --out")
    _add_encoder_arguments(parser, "default: minilm")
    parser.set_defaults(run=run_index)
    return parser


def add_serve_parser(commands: Any) -> argparse.ArgumentParser:
    """Add ``serve`` to sub-commands."""
    parser = commands.add_parser("serve", help="run the retrieval server")
    add_serve_arguments(parser)
    return parser


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``serve``, also those of ``python -m retrieval_server``."""
    parser.add_argument(
        "--index",
        "--index_path",
        type=Path,
        required=True,
        help="directory that `tree-grpo index` wrote, or a FAISS file such as e5_Flat.index",
    )
    parser.add_argument(
        "--corpus", "--corpus_path", type=Path, help="JSONL; only a FAISS file needs it"
    )
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine only")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--topk", type=int, default=3, help="for requests that name none")
    _add_encoder_arguments(parser, "default: the one the index was built with")
    parser.set_defaults(run=run_serve)


def _add_encoder_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--encoder",
        "--retriever_model",
        help=f"minilm (packaged), a model directory or a hub name; {default}",
    )
    parser.add_argument(
        "--family", "--retriever_name", help="e5, bge or minilm; default: by the encoder's name"
    )
    parser.add_argument("--device", default="cpu", help="where the encoder runs")
    parser.add_argument(
        "--allow-download", action="store_true", help="fetch an encoder that is not on this machine"
    )


def run_index(args: argparse.Namespace) -> int:
    """Build an index directory. Raises ValueError for a user's mistake."""
    from retrieval_server.build import build_index, check_target
    from retrieval_server.encoder import load_encoder

    if not args.corpus.is_file():
        raise ValueError(f"there is no corpus file {args.corpus}")
    check_target(args.out, args.overwrite)  # before the encoder, which takes seconds to load
    encoder = None
    if args.backend == "faiss":
        encoder = load_encoder(
            args.encoder or "minilm",
            family=args.family,
            device=args.device,
            allow_download=args.allow_download,
        )
    elif args.encoder is not None:
        raise ValueError(f"the backend {args.backend} takes no encoder; leave --encoder out")
    manifest = build_index(
        args.corpus, args.out, backend=args.backend, encoder=encoder, overwrite=args.overwrite
    )
    print(f"{args.out}: {manifest.backend} index of {manifest.rows} passages")
    print(f"serve it with: tree-grpo serve --index {args.out}")
    return 0


def run_serve(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM. Raises ValueError for a user's mistake."""
    listener = listen(args.host, args.port)
    with listener:
        # imported after the port is ours: a second server should fail at once
        import uvicorn

        from retrieval_server.app import create_app

        def load() -> Backend:
            from retrieval_server.loading import open_index

            return open_index(
                args.index,
                corpus=args.corpus,
                encoder=args.encoder,
                family=args.family,
                device=args.device,
                allow_download=args.allow_download,
            )

        outcome: list[State] = []

        def on_loaded(state: State) -> None:
            outcome.append(state)
            if state.failure is not None:
                server.should_exit = True
            elif state.batcher is not None:
                backend = state.batcher.backend
                print(
                    f"serving {len(backend)} passages ({backend.name}), "
                    f"loaded in {state.load_s:.1f} s",
                    flush=True,
                )

        if not args.index.exists():
            raise ValueError(f"there is no index {args.index}; build one with: tree-grpo index")
        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
        app = create_app(load=load, topk=args.topk, on_loaded=on_loaded)
        options = {"log_level": "warning", "access_log": False, "timeout_graceful_shutdown": 5}
        # keep idle connections longer than clients do, so that no request meets a closing one
        server = uvicorn.Server(uvicorn.Config(app, timeout_keep_alive=75, **options))
        host, port = listener.getsockname()[:2]
        print(f"listening on http://{host}:{port}, loading {args.index}", flush=True)
        run_until_signal(server, listener)
    if outcome and outcome[0].failure is not None:
        raise outcome[0].failure
    return 0


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; ValueError naming the port where that is not possible."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OverflowError as error:
        raise ValueError(f"got the port {port}, expected 0 to 65535") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"port {port} on {host} is taken by another program; stop it, or choose "
                "another with --port"
            ) from error
        raise ValueError(f"cannot listen on {host} port {port}: {error.strerror}") from error


def run_until_signal(server: Any, listener: socket.socket) -> None:
    """Run uvicorn. It ends by raising the signal again, which must then end in silence."""

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        print("stopped", flush=True)


def main(argv: list[str] | None = None) -> int:
    """``python -m retrieval_server``: the arguments of ``serve``."""
    parser = argparse.ArgumentParser(prog="python -m retrieval_server")
    add_serve_arguments(parser)
    try:
        return run_serve(parser.parse_args(argv))
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
