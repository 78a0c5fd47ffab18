"""`python -m squall.target`: runs `squall target` without the other commands."""

import sys

from squall.target.command import main

sys.exit(main())
