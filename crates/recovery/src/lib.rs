//! jbd2 journal recovery: scan, revoke, replay.
