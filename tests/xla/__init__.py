"""The same buckets through torch_xla 2.9, the frontend of trn1 (`make test-xla`)."""
