"""Shakespeare by LEAF's rules: what a title is, whose words count, and how much a role must say."""

import numpy as np
import pytest

from fedjax_het.data import shakespeare, sources
from fedjax_het.errors import DataError

AUTHOR = shakespeare.AUTHOR
LINE = "of such lines as this one two are longer than a whole window"


def said(*lines, play="PLAY"):
  """What each role says of a play's lines."""
  return {role: words for (_, role), words in shakespeare.roles({play: [*lines]}).items()}


def write(folder, count):
  """The release of 1994 with so many roles that say three lines, two a play, and fools who say one."""
  lines = [AUTHOR]
  for i in range(0, count, 2):
    lines += [f"PLAY {i}", "", AUTHOR, "  FOOL. Ay."]
    lines += [f"  {role}. {LINE}" for role in ("KING", "QUEEN")[: count - i] for _ in range(3)]
  (folder / "shakespeare").mkdir(exist_ok=True)
  (folder / "shakespeare" / "100.txt").write_text("\n".join(lines))


@pytest.mark.parametrize("above", range(2, 8))
def test_a_title_is_the_nearest_line_two_to_seven_above_the_author(above):
  lines = [AUTHOR]
  for i in range(20):
    lines += ["1603", f"PLAY {i}", *[""] * (above - 2), "A COMEDY", AUTHOR, f"  KING. Line {i}."]
  found = shakespeare.plays("\n".join(lines))
  assert {title: own[0] for title, own in found.items()} == {
    f"PLAY {i}": f"  KING. Line {i}." for i in range(20)
  }


def test_roles_of_two_lines_are_left_out_however_long():
  found = said(*[f"  KING. {LINE}"] * 3, *[f"  QUEEN. {LINE}"] * 2, f"  SON. {LINE}", f"    {LINE}")
  assert found == {"KING": f"{LINE} " * 3}


@pytest.mark.parametrize("count", [80, 81])
def test_roles_of_eighty_characters_are_left_out(count):
  assert ("KING" in said("  FOOL. Ay.", "  KING. a", "    b", f"    {(count - 5) * 'c'}")) == (count > 80)


def test_a_play_of_one_role_is_left_out():
  king = [f"  KING. {LINE}"] * 3
  assert not said(*king) and [*said(*king, "  FOOL. Ay.")] == ["KING"]


def test_the_acts_of_the_comedy_of_errors_say_nothing():
  scene = [f"ACT I. {LINE}", LINE, f"DUKE. {LINE}", LINE, "", "SON. Ay."]
  assert said(*scene * 3, play=shakespeare.ERRORS) == {"DUKE": f"{LINE} " * 6}


def test_a_text_of_less_than_a_hundred_roles_is_refused(tmp_path):
  write(tmp_path, 100)
  assert np.unique(sources.load("shakespeare", tmp_path, train=None).groups).tolist() == [*range(100)]
  write(tmp_path, 99)
  with pytest.raises(DataError, match=r"not the whole of Shakespeare's plays: 99 roles found"):
    sources.load("shakespeare", tmp_path, train=None)


def test_every_role_trains_on_a_window_at_least(tmp_path):
  """Two windows a role, of which two fifths are none."""
  write(tmp_path, 100)
  assert sources.load("shakespeare", tmp_path, train=0.4, stride=80).split.tolist() == [0, 1] * 100
