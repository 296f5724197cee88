"""Silences messages of Orbax's and tensorstore's threads about errors that are raised elsewhere too."""

import functools
import logging as python_logging
import sys
from types import TracebackType
from typing import Any

from absl import logging

from fedjax_het.engine.capacity import full


@functools.cache
def quiet_background() -> None:
  """Suppresses two kinds of messages from Orbax's and tensorstore's threads from now on.

  The first comes from a read or write that ends after Orbax has closed its event loop because of another
  error: it calls back from a tensorstore thread at any later time. The second is a lack of disk space or
  memory, which each of Orbax's threads logs with a traceback before it is raised.
  """
  hooks = sys.excepthook, sys.unraisablehook

  def abandoned(error: BaseException | None, trace: TracebackType | None) -> bool:
    found = trace or (error and error.__traceback__)  # tensorstore may pass the error without a traceback
    first = found.tb_frame.f_code.co_name if found else ""
    return first == "call_soon_threadsafe" and str(error) == "Event loop is closed"

  def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not abandoned(error, trace):
      hooks[0](kind, error, trace)

  def unraisable(found: Any) -> None:
    if not abandoned(found.exc_value, found.exc_traceback):
      hooks[1](found)

  def raised_later(record: Any) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    library = "orbax" in record.pathname or record.name == "asyncio"
    return library and error is not None and bool(full(error))

  sys.excepthook, sys.unraisablehook = hook, unraisable
  for logger in (logging.get_absl_logger(), python_logging.getLogger("asyncio")):
    logger.addFilter(lambda record: not raised_later(record))
