//! The only source of locks, condition variables and shared atomics, with lock ranks and backends.
