"""Scripts that measure and check the library; README.md lists them, and each is started by its path.

They import one another by full names, such as `benchmarks.provenance`, so the root of the checkout has to be
on Python's path. `pip install -e .` puts it there.
"""
