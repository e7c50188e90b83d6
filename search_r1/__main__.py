"""``python -m search_r1`` is ``tree-grpo``."""

import sys

from search_r1.cli import main

sys.exit(main())
