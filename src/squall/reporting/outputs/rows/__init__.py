"""The rows that databases, queues and object stores get. Start with `model`, which is the
documented schema; `from_document` derives the rows of a run, `as_json` writes them as objects."""
