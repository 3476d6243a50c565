//! Rules for names.

use crate::{Error, Result};

/// Checks a name for a lookup.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > 255 {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Error::Invalid("a name is 1 to 255 bytes without '/' and NUL"));
    }
    Ok(())
}

/// Checks a name to be created or removed.
pub(super) fn check_new_name(name: &[u8]) -> Result<()> {
    check_name(name)?;
    if name == b"." || name == b".." { Err(Error::Invalid("'.' and '..' cannot be changed")) } else { Ok(()) }
}
