"""`python -m autotune`."""

from autotune.cli import main

raise SystemExit(main())
