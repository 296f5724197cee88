"""Asynchronous parts: servers that do not wait for a whole cohort."""

from fedjax_het.asynchronous.stale import constant, fedasync, fedbuff, hinge, polynomial

__all__ = ["constant", "fedasync", "fedbuff", "hinge", "polynomial"]
