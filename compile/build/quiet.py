"""Keeps the libraries of a build from writing notes between its lines. Errors are still shown."""

from __future__ import annotations

import logging
import os
import warnings

_TALKATIVE = ("torch", "absl", "jax", "Neuron", "neuronx_distributed", "libneuronxla")


def quiet_libraries() -> None:
    """Hide warnings, and log messages below errors, of this process and of those it starts."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("GLOG_minloglevel", "2")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
