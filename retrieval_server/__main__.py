"""``python -m retrieval_server --index DIR``, the same as ``tree-grpo serve --index DIR``."""

import sys

from retrieval_server.cli import main

if __name__ == "__main__":
    sys.exit(main())
