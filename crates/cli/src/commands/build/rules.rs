//! The options of `build` that change the tree before layout.

use anyhow::{Context, Result, bail};
use blockyard_build::{Glob, OwnerMap, Rules};
use blockyard_disk::Timestamp;

use super::super::owner::number;

/// Arguments.
#[derive(clap::Args, Default)]
pub(super) struct RuleArgs {
    /// Leave out names that match a pattern, with everything below them. In a pattern, *, ? and
    /// [...] mean the same as in tar. The match may begin at any name in a path. A pattern with a
    /// leading slash matches from the root only. Directories of the host that are left out are not
    /// opened
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<Glob>,
    /// Keep only names that match a pattern, everything below them, and the directories that lead
    /// to them
    #[arg(long, value_name = "PATTERN")]
    include: Vec<Glob>,
    /// Map owners, also those in access control lists: FROM:TO or FROM:TO:COUNT, prefixed with u:
    /// or g: for users or groups only; the first match counts
    #[arg(long, value_name = "MAP")]
    owner_map: Vec<OwnerMap>,
    /// Give everything to one user and group. Access control lists keep their entries
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    squash: Option<(u32, u32)>,
    /// Modification time of everything, in seconds since 1970
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    mtime: Option<i64>,
    /// Owner of names that match a pattern: PATTERN=UID:GID (UID or GID may be empty); the last
    /// match counts
    #[arg(long, value_name = "RULE")]
    chown: Vec<String>,
    /// Permissions of names that match a pattern: PATTERN=MODE (octal); the last match counts.
    /// Symbolic links keep theirs
    #[arg(long, value_name = "RULE")]
    chmod: Vec<String>,
}

impl RuleArgs {
    /// The rules.
    pub(super) fn rules(&self) -> Result<Rules> {
        let chown = self.chown.iter().map(|rule| {
            let (pattern, owner) = parts("--chown", rule)?;
            let Some((uid, gid)) = owner.split_once(':') else { bail!("--chown {rule}: no UID:GID") };
            Ok((pattern, id(rule, uid)?, id(rule, gid)?))
        });
        let chmod = self.chmod.iter().map(|rule| {
            let (pattern, mode) = parts("--chmod", rule)?;
            let mode = u16::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777);
            Ok((pattern, mode.with_context(|| format!("--chmod {rule}: not octal permissions"))?))
        });
        Ok(Rules {
            exclude: self.exclude.clone(),
            include: self.include.clone(),
            owners: self.owner_map.clone(),
            squash: self.squash,
            modified: self.mtime.map(Timestamp::from_seconds),
            chown: chown.collect::<Result<_>>()?,
            chmod: chmod.collect::<Result<_>>()?,
            ..Rules::default()
        })
    }
}

/// The pattern of a rule, and the text after the last `=`.
fn parts<'r>(option: &str, rule: &'r str) -> Result<(Glob, &'r str)> {
    let Some((pattern, value)) = rule.rsplit_once('=') else { bail!("{option} {rule}: no PATTERN=VALUE") };
    let pattern = pattern.parse().map_err(|reason| anyhow::anyhow!("{option} {rule}: {reason}"))?;
    Ok((pattern, value))
}

fn id(rule: &str, text: &str) -> Result<Option<u32>> {
    if text.is_empty() {
        return Ok(None);
    }
    let id = number(text);
    let wrong = || format!("--chown {rule}: {text} is not the number of an owner, 0 to {}", u32::MAX - 1);
    id.with_context(wrong).map(Some)
}

fn owner(text: &str) -> std::result::Result<(u32, u32), String> {
    let parsed = text.split_once(':').and_then(|(uid, gid)| Some((number(uid)?, number(gid)?)));
    parsed.ok_or_else(|| format!("{text}: not UID:GID, two numbers from 0 to {}", u32::MAX - 1))
}
