# SPDX-License-Identifier: Apache-2.0
"""deepspeed.launcher.runner: what accelerate's launcher imports. The launcher is `zinc launch`."""
import os

from .._refuse import refuse

DEEPSPEED_ENVIRONMENT_NAME = os.environ.get("DS_ENV_FILE", ".deepspeed_env")
main = refuse("the deepspeed launcher in Python", "use `zinc launch`, torchrun or accelerate launch")
