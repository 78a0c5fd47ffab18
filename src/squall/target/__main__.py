"""`python -m squall.target`: the same command without the rest of Squall."""

import sys

from squall.target.command import main

sys.exit(main())
