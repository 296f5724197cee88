"""Scripts that measure the library; each is started by its path, as README.md lists them.

They import one another by full names, such as `benchmarks.provenance`. So the root of the checkout has to be on
Python's path, where `pip install -e .` puts it.
"""
