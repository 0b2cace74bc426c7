"""Makes the records of tasks. With such a record, the result of an equal task can be found again."""
