"""Keeps the libraries below from talking over our own output."""

import logging
import warnings


def quiet() -> None:
    """Progress bars and notices of transformers and torch off; their errors stay."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
