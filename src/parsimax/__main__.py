"""``python -m parsimax`` is ``parsimax``."""

import sys

from parsimax.cli import main

sys.exit(main())
