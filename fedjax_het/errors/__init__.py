"""The errors that users see, and the checks that raise them before anything is compiled."""

from fedjax_het.errors.factories import check_given, check_transformation
from fedjax_het.errors.files import DAMAGE, check_here, folder_of, reading
from fedjax_het.errors.kinds import LONGEST, DataError, NonFiniteLoss, NoRoom, NoStates, SettingError, shown
from fedjax_het.errors.memory import check_memory, in_bytes, memory_there
from fedjax_het.errors.names import PAPERS, check_choice, near
from fedjax_het.errors.numbers import (
  check_number,
  check_pixels,
  check_range,
  check_seed,
  check_whole,
  is_zero,
)
from fedjax_het.errors.renamed import renamed
from fedjax_het.errors.values import check_flag, check_key, check_run_key, check_section, listed, typed_keys

__all__ = [
  "DAMAGE",
  "LONGEST",
  "PAPERS",
  "DataError",
  "NoRoom",
  "NoStates",
  "NonFiniteLoss",
  "SettingError",
  "check_choice",
  "check_flag",
  "check_given",
  "check_here",
  "check_key",
  "check_memory",
  "check_number",
  "check_pixels",
  "check_range",
  "check_run_key",
  "check_section",
  "check_seed",
  "check_transformation",
  "check_whole",
  "folder_of",
  "in_bytes",
  "is_zero",
  "listed",
  "memory_there",
  "near",
  "reading",
  "renamed",
  "shown",
  "typed_keys",
]
