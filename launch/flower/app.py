"""A configuration of the library as apps of Flower's deployment engine; docs/flower.md has the commands."""

import fedjax_het as fh

client = fh.flower.client_app()
server = fh.flower.server_app()
