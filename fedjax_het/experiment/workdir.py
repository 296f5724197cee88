"""The names that scripts import from here; they live in `fedjax_het.workdir.folder`."""

from fedjax_het.workdir.folder import prepare as prepare
from fedjax_het.workdir.folder import write_atomic as write_atomic
