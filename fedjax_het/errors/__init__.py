"""The errors that users see, and the checks that raise them before anything is compiled."""

# ruff: noqa: F401

from fedjax_het.errors.files import DAMAGE, check_here, folder_of, reading
from fedjax_het.errors.kinds import DataError, NonFiniteLoss, NoRoom, NoStates, SettingError, shown
from fedjax_het.errors.memory import check_memory, in_bytes, in_thousands, memory_there
from fedjax_het.errors.names import check_choice, near
from fedjax_het.errors.numbers import (
  check_number,
  check_pixels,
  check_range,
  check_seed,
  check_whole,
  is_one,
  is_zero,
)
from fedjax_het.errors.renamed import renamed
from fedjax_het.errors.values import (
  check_flag,
  check_given,
  check_key,
  check_run_key,
  check_same_rounds,
  check_section,
  check_transformation,
  checked_counts,
  listed,
  typed_keys,
)
