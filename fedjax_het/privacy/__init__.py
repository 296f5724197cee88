"""The privacy ledger: what the noise of a run guarantees."""
