//! The time that goes into images: the time of the clock, or a fixed time, so that work can be
//! repeated.
//!
//! The time is fixed by `--time`, else by E2FSPROGS_FAKE_TIME, else by SOURCE_DATE_EPOCH. Each of
//! them holds seconds since 1970.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;

use super::UsageError;

/// Variables that fix the time. If both are set, the first one in this list counts.
const VARIABLES: [&str; 2] = ["E2FSPROGS_FAKE_TIME", "SOURCE_DATE_EPOCH"];

/// The fixed time in seconds since 1970, if there is one.
pub(super) fn fixed(given: Option<i64>) -> Result<Option<i64>> {
    if given.is_some() {
        return Ok(given);
    }
    let set = VARIABLES.into_iter().find_map(|name| Some((name, std::env::var_os(name)?)));
    let Some((name, text)) = set else { return Ok(None) };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    seconds
        .map(Some)
        .ok_or_else(|| UsageError::new(format!("{name}={}: not seconds since 1970", text.display())).into())
}

/// The time of a new file system in seconds since 1970: the given one, else the fixed one, else
/// now.
pub(super) fn creation_time(given: Option<u64>) -> Result<u64> {
    if let Some(seconds) = given {
        return Ok(seconds);
    }
    match fixed(None)? {
        Some(seconds) => u64::try_from(seconds)
            .map_err(|_| UsageError::new(format!("{seconds}: a file system is not made before 1970")).into()),
        None => Ok(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())),
    }
}
