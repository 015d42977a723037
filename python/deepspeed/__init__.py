# SPDX-License-Identifier: Apache-2.0
"""Zinc in the place of DeepSpeed: the names that transformers, accelerate and training scripts use,
over libzinc. What is not here refuses by name.

Importing does nothing but define names: with this package installed accelerate imports it in every
run, with or without a DeepSpeed configuration."""
from . import accelerator, checkpointing, comm, ops, runtime, utils, zero
from ._engine import DeepSpeedEngine, initialize
from ._refuse import refuse
from .accelerator import get_accelerator
from .comm import init_distributed
from .runtime import lr_schedules
from .utils import log_dist, logger

__version__ = "0.19.8+zinc"
__all__ = ["DeepSpeedEngine", "accelerator", "add_config_arguments", "checkpointing", "comm", "get_accelerator",
           "init_distributed", "initialize", "log_dist", "logger", "lr_schedules", "ops", "runtime", "utils",
           "zero"]


def add_config_arguments(parser):
    """--deepspeed and --deepspeed_config, as scripts without Hugging Face take them."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument("--deepspeed", default=False, action="store_true",
                       help="a flag that scripts look at; without effect here")
    group.add_argument("--deepspeed_config", default=None, type=str, help="a ds_config.json")
    return parser


init_inference = refuse("deepspeed.init_inference", "Zinc trains; it has no inference engine")
tp_model_init = refuse("deepspeed.tp_model_init", "Zinc has data parallelism only")
PipelineModule = refuse("deepspeed.PipelineModule", "Zinc has data parallelism only")


def __getattr__(name):
    raise AttributeError(f"zinc: deepspeed.{name} is not there (docs/huggingface.md says what is)")
