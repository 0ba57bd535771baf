"""`python -m cocondenser_jax.cli`."""

import sys

from cocondenser_jax.cli import main

sys.exit(main())
