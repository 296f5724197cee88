"""Clips of sound: wav files of 16 bits, one channel and a known rate."""

import io
import wave

import numpy as np

from fedjax_het.errors import DataError, reading


def samples_of(where: str, content: bytes, rate: int, most: int) -> np.ndarray:
  """Returns the samples of a wav file, int16 [n] with 0 < n <= `most`.

  Args:
    where: the file's name, for errors.
    content: its bytes.
    rate: the samples a second that it has to have.
    most: the largest number of samples.

  Raises:
    DataError: the file is damaged, of another format, empty or too long.
  """
  with reading(where, "is no wav file, or a damaged one"), wave.open(io.BytesIO(content)) as file:
    form = file.getframerate(), file.getnchannels(), file.getsampwidth()
    declared, frames = file.getnframes(), file.readframes(file.getnframes())
  if form != (rate, 1, 2):
    raise DataError(
      f"{where} has {form[0]} Hz, {form[1]} channels and {8 * form[2]} bits, not {rate}, 1 and 16."
    )
  with reading(where, "is truncated or damaged"):
    samples = np.frombuffer(frames, "<i2")
  if not 0 < len(samples) <= most or len(samples) != declared:
    raise DataError(
      f"{where} is truncated, empty or longer than {most / rate:g} s: {len(samples)} of {declared} samples."
    )
  return samples
