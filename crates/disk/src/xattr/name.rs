//! Names of attributes: the prefix is a number on disk.

/// (index, prefix) of prefixes that come before the rest of a name.
const PREFIXES: [(u8, &str); 4] = [(1, "user."), (4, "trusted."), (6, "security."), (7, "system.")];
/// (index, name) of names that consist of the prefix alone.
const WHOLE: [(u8, &str); 3] =
    [(2, "system.posix_acl_access"), (3, "system.posix_acl_default"), (8, "system.richacl")];

/// Splits a full name (`user.colour`) into index and rest. The rest is empty for the three names in
/// `WHOLE`. `None` for an unknown prefix, and for a prefix in `PREFIXES` that is followed by
/// nothing or by more than 255 bytes.
#[must_use]
pub fn split_name(full: &[u8]) -> Option<(u8, &[u8])> {
    if let Some((index, _)) = WHOLE.iter().find(|(_, name)| name.as_bytes() == full) {
        return Some((*index, &[]));
    }
    let (index, rest) =
        PREFIXES.iter().find_map(|(index, prefix)| Some((*index, full.strip_prefix(prefix.as_bytes())?)))?;
    (!rest.is_empty() && rest.len() <= 255).then_some((index, rest))
}

/// The full name of an index and a rest; `None` for an index without a known prefix.
#[must_use]
pub fn join_name(index: u8, rest: &[u8]) -> Option<Vec<u8>> {
    let prefix = PREFIXES.iter().chain(&WHOLE).find(|(known, _)| *known == index)?.1;
    Some([prefix.as_bytes(), rest].concat())
}
