"""`python -m coba_rl.cli`, for launchers such as `accelerate launch -m` and `torchrun -m`."""

import sys

from coba_rl.cli.app import main

sys.exit(main())
