"""What the page of all tasks says beside its figures."""

from fedjax_het.leaderboard.budget import CORE_MINUTES, LEAST, MOST, SEEDS

ABOUT = f"""# Leaderboard

Every method on several tasks, each tuned with the same budget: as many trials as about {CORE_MINUTES:g}
core-minutes a method and task hold, at least {LEAST} and at most {MOST}, which are fixed numbers in
[configs/leaderboard.py](../configs/leaderboard.py) ([seconds of a run](results/raw/leaderboard_steps.json)).
Trials are of the learning rate and of one or two of the method's own strengths, by
[successive halving](tuning.md) on the clients' validation parts. What is best then runs
with {len(SEEDS)} fresh seeds, which also draw other clients' rows and splits; the seeds are the same for all
methods. Figures are of the clients' test parts. All methods of a task have the same rounds, network, local
epochs and batch size.

`±` is half of the 95 % interval of the mean over the seeds. It includes variation that all methods share, as
some seeds draw harder clients; the comparison leaves that out, because it is of the differences within each
seed. Methods are compared with the best one. Those that cannot be told apart from it are the first group:
they come first, in alphabetical order, and no order among them is claimed. The others follow by their means;
nothing is claimed of the order among those either ([how](#how-methods-are-compared)). What stays of it
when uploads are lost, rounded, attacked or private: [MNIST under conditions](leaderboard/conditions.md)."""
HOW = """## How methods are compared

By Hsu's multiple comparisons with the best, with the methods as treatments and the seeds as blocks. The
variance is pooled over the methods whose standard deviation over the seeds is within a factor of three of the
best one's; where the differences of a pair vary more than that, their own variance counts. Every other method
is compared with the best by Welch's test, with variances moderated by those of all methods (Smyth, 2004), as
five seeds alone say little of a variance, and with Holm's correction. In simulations the true best method is
left out of the first group in fewer than 5 of 100 boards, also where it varies ten times as much as others
([metrics/groups.py](../fedjax_het/metrics/groups.py),
[tests/metrics/test_groups.py](../tests/metrics/test_groups.py)). The smallest difference that could have been
seen stands with each task.

## Rows of your own

A row that has raw figures in [results/raw/leaderboard](results/raw/leaderboard) is not run again. A stopped
call goes on where it was, and `--minutes` ends one between two rows. `--dry_run` says what is there, missing
or stale: a row is stale if its settings, its space, its trials or the module of its method have changed.
Delete its raw figures to make it again.

```sh
python -m fedjax_het.leaderboard --tasks=digits --methods=fedavg,ditto --minutes=150 --data_dir=DATA
```

`python -m fedjax_het.leaderboard --page=docs` writes these pages. A method of your own is five lines in a
module of your package, which its [entry point](packages.md) names, and then `--methods=mine`:

```python
# Not run by the tests: my_package is the reader's.
from fedjax_het.leaderboard.spaces import SPACES
from fedjax_het.methods import METHODS, Method
from my_package.methods import mine

METHODS["algorithm"]["mine"] = Method("mine", mine, "what it does", "where it is published")
SPACES["mine"] = {"strength": "0.01:1:log"}, "grid of the paper"
```

It has as many trials as FedAvg. Its raw figures go where `--raw` says, by default into
docs/results/raw/leaderboard of the checkout that has the board; `--workdir` is the folder of the runs, and
`--board=FILE` another board than configs/leaderboard.py."""
